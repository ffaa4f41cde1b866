"""Experts with capacity: the rule itself, and plans on four ranks against the same rule written out in one process."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan import Parallelism, Plan, Training, forbid
from autoplan.errors import ParallelismError
from autoplan.ir.layout import S
from autoplan.report.idle_options import idle_options
from autoplan.report.notes import notes_of
from autoplan.rules.nn.expert_capacity import MIXTURE, ROUTED, WITHIN, limit_of_rows
from autoplan.rules.registry import AxisStrategy
from autoplan.runtime.ops import within_capacity
from autoplan.verify import STEPS, train_plan
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool
from autoplan.verify.variants import in_float64
from tests.support.planning import parallelize_alone

EXPERTS, HIDDEN, INNER, CHOICES, ROWS, LENGTH, LAYERS, CAPACITY = 4, 8, 12, 2, 8, 6, 2, 0.75
DROPPING = ("order", "score")


def kept(index: Tensor, scores: Tensor, dropping: str, capacity: float = CAPACITY) -> Tensor:
    """Choice by choice: whether its expert still takes it, [rows, tokens, k]."""
    rows, tokens, choices = index.shape
    most = math.ceil(capacity * tokens * choices / EXPERTS)
    result = torch.zeros(index.shape, dtype=torch.bool)
    for row in range(rows):
        taken = [0] * EXPERTS
        places = [(token, choice) for choice in range(choices) for token in range(tokens)]
        if dropping == "score":
            places.sort(key=lambda place: -float(scores[row][place]))
        for place in places:
            expert = int(index[row][place])
            result[row][place] = taken[expert] < most
            taken[expert] += 1
    return result


@pytest.mark.parametrize("dropping", DROPPING)
def test_an_expert_takes_so_many_of_a_rows_choices(dropping: str) -> None:
    random = torch.Generator().manual_seed(0)
    index = torch.stack([torch.randperm(EXPERTS, generator=random)[:CHOICES] for _ in range(ROWS * LENGTH)])
    index, scores = index.view(ROWS, LENGTH, CHOICES), torch.rand(ROWS, LENGTH, CHOICES, generator=random)
    for capacity in (0.3, CAPACITY, 4.0):
        found = within_capacity(index, scores, EXPERTS, capacity, dropping == "score")
        assert torch.equal(found, torch.where(kept(index, scores, dropping, capacity), index, EXPERTS))
    own = torch.where(index == 1, EXPERTS, index)  # a choice that names no expert takes no place
    found = within_capacity(own, scores, EXPERTS, CAPACITY, dropping == "score")
    assert torch.equal(found, torch.where(kept(index, scores, dropping) & (own < EXPERTS), own, EXPERTS))


class Layer(nn.Module):
    """A mixture of gated experts over [rows, tokens, width]; ``dropping``: what it drops itself, "" for nothing."""

    def __init__(self, dropping: str) -> None:
        super().__init__()
        self.dropping = dropping
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / 3)

    def forward(self, x: Tensor) -> Tensor:
        scores, index = self.router(x).softmax(-1).topk(CHOICES, -1)
        if self.dropping:
            index = torch.where(kept(index, scores.detach(), self.dropping), index, EXPERTS)
        tokens, scores, index = x.reshape(-1, HIDDEN), scores.reshape(-1, CHOICES), index.reshape(-1, CHOICES)
        y = torch.zeros_like(tokens)
        for number in range(EXPERTS):
            token, choice = torch.where(index == number)
            gate, up = F.linear(tokens[token], self.up[number]).chunk(2, -1)
            rows = F.linear(F.silu(gate) * up, self.down[number])
            y.index_add_(0, token, rows * scores[token, choice, None])
        return x + y.view(x.shape)


class Mixtures(nn.Module):
    def __init__(self, dropping: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dropping) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def planned(parallelism: object, dropping: str, **further: object) -> Plan:
    torch.manual_seed(0)
    training = Training(**{"expert_capacity": CAPACITY, "learning_rate": 1e-2, **further}, expert_dropping=dropping)
    batch = {"x": torch.randn(ROWS, LENGTH, HIDDEN)}
    given = {"parallelism": parallelism.pinned, "constraints": NO_SUMS} if isinstance(parallelism, Travels) else {
        "parallelism": parallelism}  # fmt: skip
    return parallelize_alone(Mixtures(), "1x4 cpu", batch, training=training, **given)


@dataclass(frozen=True)
class Travels:
    """Pins under which tokens travel by all-to-all."""

    pinned: Parallelism


NO_SUMS = [forbid("autoplan.experts", "P", axis=axis) for axis in ("ep", "tp")]


PLANS = {
    "ep=4": Parallelism(dp=4, ep=4), "ep=2, tp=2": Parallelism(dp=2, tp=2, ep=2, etp=2),
    "pp=2, ep=2": Parallelism(pp=2, ep=2, micro_batch=2), "ddp": "ddp", "tp=4": Parallelism(dp=1, tp=4, ep=1),
    "ep=4, all-to-all": Travels(Parallelism(dp=4, ep=4)), "ep=4 on tp=2": Travels(Parallelism(dp=2, tp=2, ep=4)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dropping", DROPPING)
@pytest.mark.parametrize("plan", PLANS)
def test_a_step_drops_what_one_process_drops(pool: RankPool, plan: str, dropping: str) -> None:
    """The reference decides choice by choice, in Python, over each row of the whole batch."""
    made = planned(PLANS[plan], dropping)
    record = in_float64(made.record)
    torch.manual_seed(1)
    reference = Mixtures(dropping).double()
    state = {name: value.detach().clone() for name, value in reference.state_dict().items()}
    batch = {"x": torch.randn(ROWS, LENGTH, HIDDEN, dtype=torch.float64)}
    with patch("autoplan.verify.on_local_ranks", lambda *given: in_pool(pool, *given)):
        found = train_plan(record, batch, state)
    expected = train_eagerly(reference, None, batch, record.training, STEPS)
    free = train_eagerly(with_values(Mixtures().double(), state), None, batch, record.training, 1)
    assert abs(free.losses[0] - expected.losses[0]) > 1e-3  # something was dropped
    torch.testing.assert_close(found.losses, expected.losses, atol=1e-10, rtol=1e-10)
    for name, value in expected.parameters.items():
        torch.testing.assert_close(found.parameters[name], value, atol=1e-9, rtol=1e-9, msg=name)
    for name, value in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], value, atol=1e-10, rtol=1e-10, msg=name)


def with_values(module: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    module.load_state_dict(state)
    return module


@pytest.mark.usefixtures("verified_in_pool")
def test_a_plan_says_that_tokens_are_dropped_and_verifies_with_the_same_rule() -> None:
    plan = planned(PLANS["ep=4, all-to-all"], "score")
    operators = [node.op for block in plan.record.model.blocks for node in block.nodes]
    assert operators.count(WITHIN) == len(plan.record.model.blocks)
    told = plan.report(verbose=True)
    assert all(x in " ".join(told.split()) for x in ("6 rows from each rank to each other", "Nothing is counted"))
    widths = {4 * HIDDEN + 8 * CHOICES, 4 * HIDDEN, 4 * HIDDEN + 4 * CHOICES}
    assert {c.bytes for c in plan.predicted.collectives if c.kind == "all-to-all"} == {24 * each for each in widths}
    assert "at most 0.75 times an even share" in told and "isn't equal to the one that drops none" in told
    result = plan.verify()
    assert result.passed and "with experts of the same capacity" in result.note
    assert any("expert_capacity=0.75" in lost for lost in plan.export_config("megatron").lost)
    with pytest.raises(ParallelismError, match="part of the traced graph"):
        plan.what_if(training=Training(learning_rate=1e-2))


def test_a_capacity_is_of_a_mixture_with_rows() -> None:
    training = Training(expert_capacity=1.25)
    with pytest.raises(ParallelismError, match="no mixture of experts"):
        parallelize_alone(nn.Sequential(nn.Linear(4, 4)), "1x2 cpu", (torch.randn(4, 4), torch.randn(4, 4)),
                          loss_fn=F.mse_loss, training=training)  # fmt: skip
    with pytest.raises(ParallelismError, match="by rows of the batch"):
        parallelize_alone(Mixtures(), "1x2 cpu", {"x": torch.randn(ROWS, HIDDEN)}, training=training)
    with pytest.raises(ParallelismError, match="'score' without expert_capacity: nothing is dropped"):
        parallelize_alone(Mixtures(), "1x2 cpu", {"x": torch.randn(ROWS, LENGTH, HIDDEN)},
                          training=Training(expert_dropping="score"))  # fmt: skip
    with pytest.raises(ParallelismError, match="positive number"):
        Training(expert_capacity=0)


IDLE = [(1.6, "score", False), (1.9, "order", True), (2.0, "score", True)]


@pytest.mark.parametrize(("capacity", "dropping", "idle"), IDLE)
def test_a_capacity_that_drops_nothing_is_told(capacity: float, dropping: str, idle: bool) -> None:
    """Of six tokens with two choices each among four experts, 1.6 even shares are five tokens, 1.9 are six."""
    record = planned(PLANS["ddp"], dropping, expert_capacity=capacity).record
    told = [f"expert_capacity={capacity}", *["expert_dropping='score'"] * (dropping == "score")] if idle else []
    assert [line.split(", for")[0] for line in idle_options(record)] == [f"No effect: {each}" for each in told]
    assert any("isn't equal to the one that drops none" in note for note in notes_of(record)) is not idle


def test_rows_are_counted_where_ranks_have_parts_of_a_row_s_tokens() -> None:
    record = planned(PLANS["ep=4, all-to-all"], "order").record
    (block, *_), (choice, *_), mesh = record.model.blocks, record.chosen.blocks, record.chosen.mesh
    node = next(node for node in block.nodes if node.op == MIXTURE)
    strategy = dict(choice.strategies)[node.name]
    assert limit_of_rows(block, node, strategy, mesh) == CAPACITY
    by_tokens = AxisStrategy((S(1), S(1), S(1), *strategy.on("ep").inputs[3:]), S(1), ROUTED, communicates=True)
    other = replace(strategy, axes=tuple((axis, by_tokens if s.body else s) for axis, s in strategy.axes))
    assert limit_of_rows(block, node, other, mesh) is None
    summed = replace(strategy, axes=tuple((axis, replace(s, body="")) for axis, s in strategy.axes))
    assert limit_of_rows(block, node, summed, mesh) is None


class Chosen(nn.Module):
    """Experts that choose their tokens (Zhou et al. 2022, 2202.09368), each so many of a row; a router's z-loss (Zoph
    et al. 2022, 2202.08906, equation 5) in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / 3)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        scores, token = logits.softmax(-1).transpose(1, 2).topk(LENGTH // 2, -1)
        rows = x.unsqueeze(1).expand(-1, EXPERTS, -1, -1).gather(2, token.unsqueeze(-1).expand(-1, -1, -1, HIDDEN))
        given = torch.einsum("betf,efh->beth", F.silu(torch.einsum("beth,ehf->betf", rows, self.up)), self.down)
        given, token = (given * scores.unsqueeze(-1)).flatten(1, 2), token.flatten(1, 2)
        y = x.scatter_add(1, token.unsqueeze(-1).expand_as(given), given)
        return y.square().mean() + 1e-3 * logits.logsumexp(-1).square().mean()


@pytest.mark.slow
@pytest.mark.usefixtures("verified_in_pool")
@pytest.mark.parametrize("plan", ["ddp", "tp=4"])
def test_experts_may_choose_their_tokens_and_routers_have_a_z_loss(plan: str) -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(ROWS, LENGTH, HIDDEN)}
    result = parallelize_alone(Chosen(), "1x4 cpu", batch, parallelism=PLANS["ddp"] if plan == "ddp" else
                               Parallelism(tp=4)).verify()  # fmt: skip
    assert result.passed and result.gradients.error < 1e-10, str(result)
