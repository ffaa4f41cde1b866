"""Experts that drop, and experts whose rows are sorted: each of a token's choices is a row of its own."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import JetMoeConfig, JetMoeForCausalLM

from autoplan import Parallelism, Training
from autoplan.errors import ParallelismError, TraceError
from autoplan.evaluation.evaluation_graph import without_dropout
from autoplan.trace.pipeline import trace
from tests.support import interpret as interpreter
from tests.support.expert_routers import CHOICES, EXPERTS, HIDDEN, INNER, LENGTH, ROWS, Router, batch, traced
from tests.support.interpret import interpret
from tests.support.mixtures import SIZES, tokens
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

torch.set_num_threads(1)
P = 0.25


class Sorting(Router):
    """JetMoE's manner; the experts' matrices lie together."""

    def own(self, wide: int = 2 * INNER, p: float = 0.0) -> None:
        self.up = nn.Parameter(torch.randn(EXPERTS, wide, HIDDEN) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / 3)
        self.p = p

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        sizes = torch.zeros(len(x), EXPERTS).scatter(1, index, 1).long().sum(0).tolist()
        _, order = index.flatten().sort(0)
        return self.summed(x, sizes, order, order.div(CHOICES, rounding_mode="trunc"), scores.flatten()[order])

    def summed(self, x: Tensor, sizes: list[int], order: Tensor, token: Tensor, scores: Tensor) -> Tensor:
        gate, up = product(x[token], self.up, sizes).chunk(2, -1)
        rows = product(F.dropout(F.silu(gate) * up, self.p), self.down, sizes)
        return torch.zeros_like(x).index_add(0, token, rows * scores[:, None])


class Meeting(Sorting):
    """Between its products a token's choices are put in their order, and meet, as JetMoE's attention heads do."""

    def own(self) -> None:
        super().own(INNER)

    def summed(self, x: Tensor, sizes: list[int], order: Tensor, token: Tensor, scores: Tensor) -> Tensor:
        rows = product(x[token], self.up, sizes)
        each = torch.zeros(len(order), INNER).index_add(0, order, rows)
        met = each.view(-1, CHOICES, INNER).softmax(1).view(-1, INNER)
        rows = product(met[order], self.down, sizes) * scores[:, None]
        return torch.zeros_like(x).index_add(0, order // CHOICES, rows)


class Elsewhere(Sorting):
    """Cut by how many tokens experts got, which aren't sorted by experts."""

    def summed(self, x: Tensor, sizes: list[int], order: Tensor, token: Tensor, scores: Tensor) -> Tensor:
        return product(x.repeat(CHOICES, 1), self.up, sizes).mean() + x


class Counting(Sorting):
    def summed(self, x: Tensor, sizes: list[int], order: Tensor, token: Tensor, scores: Tensor) -> Tensor:
        return x * max(sizes)


class Normed(Sorting):
    def summed(self, x: Tensor, sizes: list[int], order: Tensor, token: Tensor, scores: Tensor) -> Tensor:
        gate, up = product(x[token], self.up, sizes).chunk(2, -1)
        return torch.zeros_like(x).index_add(0, token, product(gate * up, self.down, sizes).softmax(0))


def product(rows: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([F.linear(part, weight[n]) for n, part in enumerate(rows.split(sizes, dim=0))])


@pytest.mark.parametrize(("make", "firsts"), [(Sorting, [2]), (Meeting, [0, 0])])
def test_sorted_rows_are_read_in_the_order_of_choices(make: Callable[[], Router], firsts: list[int]) -> None:
    """As one mixture where it is one."""
    torch.manual_seed(0)
    nodes = [node for block in traced(make()).blocks for node in block.nodes]
    assert [len(node.args[3]) for node in nodes if node.op == "autoplan.experts"] == firsts
    assert not {"aten.sort.default", "aten.index_add.default", "aten.index.Tensor"} & {node.op for node in nodes}


@pytest.mark.parametrize(
    ("make", "cause"),
    [(Elsewhere, "aren't sorted by the experts"), (Counting, "how many tokens an expert got"), (Normed, "softmax of")],
)
def test_what_no_row_computes_by_itself_is_refused(make: Callable[[], Router], cause: str) -> None:
    with pytest.raises(TraceError, match=cause):
        trace(make(), batch(), training=True)


def by_choice(module: Router, x: Tensor, mask: Tensor) -> Tensor:
    """Token by token, of which the mask keeps some elements between each choice's products."""
    tokens = x.reshape(-1, HIDDEN)
    scores, index = module.router(tokens).softmax(-1).topk(CHOICES, -1)
    rows = []
    for token, chosen, weights, kept in zip(tokens, index.tolist(), scores, mask, strict=True):
        experts = [module.experts[number] for number in chosen]
        inner = [F.silu(e.gate(token)) * e.up(token) * part / (1 - P) for e, part in zip(experts, kept, strict=True)]
        rows.append(sum(w * e.down(i) for w, e, i in zip(weights, experts, inner, strict=True)))
    return torch.stack(rows).square().sum()


def test_an_expert_drops_of_each_choice_by_itself() -> None:
    torch.manual_seed(0)
    module = Router(p=P, bias=True, gated=True)
    model = trace(module, batch(), training=True)
    (dropped,) = (node for block in model.blocks for node in block.nodes if node.op == "autoplan.dropout")
    assert dropped.type.shape == (ROWS * LENGTH, CHOICES, INNER)
    mask, state = torch.rand(dropped.type.shape) >= P, dict(module.named_parameters())
    dropping = {"autoplan.dropout": lambda x, p: x * mask / (1 - p)}
    with patch.dict(interpreter.OPERATORS, dropping):
        found = interpret(model, state, batch())
    torch.testing.assert_close(found, by_choice(module, batch()["x"], mask))
    quiet = interpret(without_dropout(model), state, batch())
    torch.testing.assert_close(quiet, module.eval()(**batch()))


def jetmoe() -> nn.Module:
    sizes = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
    more = {"num_hidden_layers": 1, "kv_channels": 8, "num_local_experts": 4, "intermediate_size": 48}
    return JetMoeForCausalLM(JetMoeConfig(**sizes, **more))


def test_jetmoe_s_heads_are_two_products_and_its_mlp_one_mixture() -> None:
    nodes = [node for block in trace(jetmoe(), tokens(), training=True).blocks for node in block.nodes]
    assert [len(node.args[3]) for node in nodes if node.op == "autoplan.experts"] == [0, 0, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("verified_in_pool")
def test_jetmoe_s_experts_over_ranks_equal_one_device() -> None:
    plan = parallelize_alone(jetmoe(), "1x4 cpu", tokens(), parallelism=Parallelism(dp=4, ep=2))
    result = plan.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)
    with pytest.raises(ParallelismError, match="compute each of a token's choices by itself"):
        parallelize_alone(jetmoe(), "1x4 cpu", tokens(), training=Training(expert_capacity=1.25))


MODULES: dict[str, Callable[[], Router]] = {
    "dropping": lambda: Router(p=P, bias=True, gated=True), "sorted, dropping": lambda: Sorting(p=P),
    "sorted, meeting": Meeting,
}  # fmt: skip
PLANS = {"ep=2": Parallelism(dp=4, ep=2), "ddp": "ddp", "tp=4": Parallelism(tp=4), "dp=2 tp=2": Parallelism(dp=2, tp=2)}


@pytest.mark.usefixtures("verified_in_pool")
@pytest.mark.parametrize("plan", [name if name == "ep=2" else slow(name) for name in PLANS])
@pytest.mark.parametrize("module", [name if name == "dropping" else slow(name) for name in MODULES])
def test_a_step_equals_one_device(module: str, plan: str) -> None:
    torch.manual_seed(0)
    found = parallelize_alone(MODULES[module](), "1x4 cpu", batch(), parallelism=PLANS[plan])
    result = found.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)
