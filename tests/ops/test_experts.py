"""A mixture's experts: the operator against its definition, the gates of transformers' modules as text, and models of
experts traced, planned and verified on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as drawn
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GptOssConfig,
    MixtralConfig,
    NemotronHConfig,
)
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

import autoplan
from autoplan.ir.graph import Model
from autoplan.ops.experts import activation_function, experts
from autoplan.ops.experts.grouped import Inside, Weights, serves
from autoplan.ops.experts.mixture import run_backward, run_forward
from autoplan.trace.mixtures import activation_of
from autoplan.trace.pipeline import trace
from tests.support.mixtures import BY_LAYERS, SIZES, mixtral, tokens
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow
from tests.support.zoo import HIDDEN, LAYERS

pytestmark = pytest.mark.usefixtures("verified_in_pool")

SWIGLU = "mul(silu(gate), up)"


def on_meta(name: str, layers: int = LAYERS) -> nn.Module:
    with torch.device("meta"):
        return BY_LAYERS[name](layers).train()


def by_definition(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    gate: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    """Token by token, choice by choice; weights are [experts, out, in]."""
    rows = []
    for token, chosen, weights in zip(hidden, index.tolist(), scores, strict=True):
        row = torch.zeros(down.shape[1], dtype=hidden.dtype)
        for expert, score in zip(chosen, weights, strict=True):
            if 0 <= expert < down.shape[0]:
                products = [weight[expert] @ token for weight in first] or [token]
                products = [p + b[expert] for p, b in zip(products, biases, strict=True)] if biases else products
                row = row + score * (down[expert] @ gate(*products))
        rows.append(row)
    return torch.stack(rows) + 0 * hidden.sum()  # which has a gradient, of zeros, where no index names an expert


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("some", [True, False], ids=["some", "all"])
def test_choices_that_are_counted_alone_have_rows(some: bool, biased: bool) -> None:
    """The same as with masks, forward and backward, where some choices, or all, name an expert."""
    random = torch.Generator().manual_seed(2)
    hidden, scores, gradient = (torch.randn(9, n, generator=random) for n in (8, 2, 8))
    index = torch.randint(-2 if some else 0, 6 if some else 4, (9, 2), generator=random)
    first, down = [torch.randn(4, 12, 8, generator=random) for _ in range(2)], torch.randn(4, 8, 12, generator=random)
    biases = [torch.randn(4, 12, generator=random) for _ in first] if biased else []
    assert serves(hidden, [*first, down])
    count = int(((index >= 0) & (index < 4)).sum())
    weights, found = Weights(first, down, biases, False), []
    for known in (count, None):
        result, inside = run_forward(hidden, index, scores, weights, SWIGLU, known)
        assert inside.score.shape[0] == (index.numel() if known is None else count)
        kept = Inside.again(inside.kept, hidden, weights)
        found.append([result, *run_backward(gradient, hidden, kept, weights, SWIGLU, index.shape)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


KEPT = [(True, True), (True, False), (False, False)]  # first products, and what the activation makes of them


@settings(max_examples=40, deadline=None)
@example(False, False, (True, True), 1, 1, 4)  # no index names an expert
@given(
    drawn.booleans(), drawn.booleans(), drawn.sampled_from(KEPT), drawn.integers(0, 2), drawn.integers(1, 4),
    drawn.integers(0, 99),
)  # fmt: skip
def test_the_operator_is_its_definition(
    transposed: bool, biased: bool, keep: tuple[bool, bool], parts: int, choices: int, seed: int
) -> None:
    """In value and gradient; some indices name no expert, and one expert may be chosen twice. Also where the
    activation, or the first products, are computed again, or there are none."""
    random = torch.Generator().manual_seed(seed)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_()

    hidden, scores, index = leaf(7, 5), leaf(7, choices), torch.randint(-1, 6, (7, choices), generator=random)
    first, down = [leaf(4, 6, 5) for _ in range(parts)], leaf(4, 3, 6 if parts else 5)
    biases = [leaf(4, 6) for _ in first] if biased else []
    text, gate = (SWIGLU, lambda g, u: F.silu(g) * u) if parts == 2 else ("relu(x)", F.relu)
    text, gate = (text, gate) if parts or keep[0] else ("x", lambda x: x)
    lying = [w.transpose(1, 2) for w in (*first, down)] if transposed else [*first, down]
    got = experts(hidden, index, scores, lying[:-1], lying[-1], biases, text, transposed, False, *keep)
    want = by_definition(hidden, index, scores, first, down, biases, gate)
    gradient = torch.randn(want.shape, dtype=torch.float64, generator=random)
    leaves = [hidden, scores, *first, down, *biases]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(got, leaves, gradient)
    theirs = torch.autograd.grad(want, leaves, gradient, materialize_grads=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_grouped_products_are_the_products_one_by_one(parts: int, transposed: bool, dtype: torch.dtype) -> None:
    """Against the same numbers in float64, where experts run one after the other; indices that name none among them."""
    random = torch.Generator().manual_seed(parts)

    def leaf(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=random) / 4).to(dtype).double().requires_grad_()

    first = [leaf(4, 16, 24) if transposed else leaf(4, 24, 16) for _ in range(parts)]
    leaves = [leaf(9, 16), leaf(9, 2), *first, leaf(4, 24, 8) if transposed else leaf(4, 8, 24)]
    leaves += [leaf(4, 24) for _ in first]
    index, gradient = torch.randint(-1, 6, (9, 2), generator=random), torch.randn(9, 8, generator=random).to(dtype)

    def run(leaves: list[Tensor], gradient: Tensor) -> list[Tensor]:
        hidden, scores, *rest = leaves
        weights = (rest[:parts], rest[parts], rest[parts + 1 :])
        result = experts(hidden, index, scores, *weights, SWIGLU if parts == 2 else "silu(x)", transposed)
        return [result, *torch.autograd.grad(result, leaves, gradient)]

    narrow = [x.detach().to(dtype).requires_grad_() for x in leaves]
    assert serves(narrow[0], narrow[2 : 3 + parts]) and not serves(leaves[0], leaves[2:])
    for ours, theirs in zip(run(narrow, gradient), run(leaves, gradient.double()), strict=True):
        tolerance = 1e-5 if dtype == torch.float32 else 0.06
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("complete", "keep"), [(False, KEPT[0]), *((True, kept) for kept in KEPT)])
def test_the_operator_compiles_whole(complete: bool, keep: tuple[bool, bool]) -> None:
    operands = torch.randn(6, 8), torch.randint(4, (6, 2)), torch.rand(6, 2).requires_grad_()
    weights = [torch.randn(4, 8, 8)] * 2, torch.randn(4, 8, 8), [], SWIGLU, False, complete, *keep
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*operands, *weights), experts(*operands, *weights))
    found = (torch.autograd.grad(f(*operands, *weights).sum(), operands[2])[0] for f in (compiled, experts))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("keep", KEPT)
def test_rows_that_are_rounded_up_compile(keep: tuple[bool, bool]) -> None:
    """What is kept then has sizes that values tell (``few_sizes``)."""
    operands = torch.randn(99, 8).bfloat16(), torch.randint(4, (99, 2)), torch.rand(99, 2).requires_grad_()
    matrices = [torch.randn(4, 8, 8).bfloat16() for _ in range(3)]
    weights = matrices[:2], matrices[2], [], SWIGLU, False, True, *keep
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*operands, *weights), experts(*operands, *weights))
    found = [torch.autograd.grad(f(*operands, *weights).sum(), operands[2])[0] for f in (compiled, experts)]
    assert torch.equal(*found)


def test_what_is_kept_is_what_is_asked_for() -> None:
    """Of 24 choices two products of 16 and a result of 8, scores and places; of an activation what autograd keeps of
    it; else no more than the operands."""
    hidden, index, scores = torch.randn(12, 8), torch.randint(4, (12, 2)), torch.rand(12, 2)
    weights = [torch.randn(4, 16, 8).requires_grad_() for _ in range(2)], torch.randn(4, 8, 16)
    own = {t.untyped_storage().data_ptr() for t in (hidden, index, scores, *weights[0], weights[1])}

    def kept_bytes(*keep: bool, text: str = SWIGLU) -> int:
        kept: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: kept.update({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()}) or x, lambda x: x
        ):
            experts(hidden, index, scores, *weights, [], text, False, True, *keep)
        return sum(size for place, size in kept.items() if place not in own)

    ends, places = 4 * 4, 2 * 8
    products = ends + 24 * (4 * (2 * 16 + 8) + 4 + places)
    assert kept_bytes(True, False) == products
    assert kept_bytes(True, True) == products + 24 * 4 * 2 * 16
    assert kept_bytes(True, True, text="mul(sigmoid(mul(gate, 1.702)), add(up, 1))") == products + 24 * 4 * 3 * 16
    assert kept_bytes(False, False) == kept_bytes(False, True) == 0
    with torch.no_grad():
        assert kept_bytes(True, True) == 0


@pytest.mark.parametrize("text", ["__import__('os')", "gate.data", "silu(down)", "system('ls')", "gate + up", "[gate]"])
def test_a_text_is_calls_of_known_functions_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="no call of a known function"):
        activation_function(text, ("gate", "up"))(torch.ones(1), torch.ones(1))


def test_gates_of_transformers_as_text() -> None:
    """Gate and up side by side; alternating, clamped; none at all. Each text computes what the module does."""
    config = MixtralConfig(**SIZES, intermediate_size=48, num_local_experts=8)
    assert activation_of(MixtralExperts(config)) == SWIGLU
    oss = GptOssExperts(GptOssConfig(hidden_size=8, intermediate_size=16, num_local_experts=4))
    text, x = activation_of(oss), 9 * torch.randn(5, 12)
    assert text is not None and "x" in text and "7.0" in text and "1.702" in text
    torch.testing.assert_close(activation_function(text, ("x",))(x), oss._apply_gate(x))
    plain = NemotronHExperts(NemotronHConfig(hidden_size=8, moe_intermediate_size=16, n_routed_experts=4))
    text = activation_of(plain)
    assert text is not None
    torch.testing.assert_close(activation_function(text, ("x",))(x), plain.act_fn(x))


def test_a_gate_that_no_text_says_is_left_as_it_is() -> None:
    module = MixtralExperts(MixtralConfig(**SIZES, intermediate_size=48, num_local_experts=8))
    module._apply_gate = lambda x: x.cumsum(-1)[:, ::2]
    assert activation_of(module) is None


def layers(model: Model) -> list[bool]:
    """Of each segment but the ends, whether it holds experts."""
    has = [any(node.op == "autoplan.experts" for node in block.nodes) for block in model.blocks]
    return [has[segment.block] for segment in model.segments[1:-1]]


@pytest.mark.parametrize("name", BY_LAYERS)
def test_experts_are_one_operator(name: str) -> None:
    """Traced from the meta device; the fused weight comes apart into gates and ups, the blocks fold."""
    model = trace(on_meta(name), tokens(), training=True)
    assert layers(model) == ([False, True] * 2 if name == "qwen3" else [True] * LAYERS)
    assert len(model.blocks) == (4 if name == "qwen3" else 3)
    nodes = [node for block in model.blocks for node in block.nodes if node.op == "autoplan.experts"]
    assert len(nodes) == 1 and nodes[0].args[6] == SWIGLU
    assert nodes[0].args[8] is True, "a router chooses among all experts: each choice names one"
    gates = [p for p in model.parameters if "gate_up" in p.name]
    assert {(p.dim, p.type.shape) for p in gates} == {(1, (8, 48 if name == "mixtral" else 16, HIDDEN))}


PLANS = {
    "auto": "auto",
    "ddp": "ddp",
    "tp=4": autoplan.Parallelism(dp=1, tp=4, pp=1),
    "tp=4 whole": autoplan.Parallelism(dp=1, tp=4, pp=1, tensor=(4,)),
    "pp=2, tp=2": autoplan.Parallelism(dp=1, tp=2, pp=2, recompute="full"),
}


@pytest.mark.parametrize(("name", "parallelism"), [
    ("qwen2", "tp=4 whole"), slow(("qwen3", "pp=2, tp=2")), slow(("olmoe", "ddp")),
    slow(("qwen2", "tp=4")), slow(("mixtral", "auto")),  # test_sequence_parallel.py has Mixtral
])  # fmt: skip
def test_a_sharded_step_equals_one_device(name: str, parallelism: str) -> None:
    plan = parallelize_alone(on_meta(name, layers=2), "1x4 cpu", tokens(), parallelism=PLANS[parallelism])
    assert plan.verify().passed


def balanced(layers: int) -> nn.Module:
    """With a load-balancing loss over all routers."""
    with torch.device("meta"):
        return mixtral(layers, output_router_logits=True).train()


def test_layers_fold_under_a_load_balancing_loss() -> None:
    """Each adds its sums to those of the layers before it, which the first one has none of."""
    model = trace(balanced(5), tokens(), training=True)
    assert [segment.block for segment in model.segments] == [0, 1, 2, 2, 2, 2, 3]
    sizes = [[value.type.shape for value in block.inputs[1:]] for block in model.blocks]
    assert sizes == [[], [], [(8,)] * 2, [(8,)] * 2], "how often experts were chosen, and how likely they were"


@pytest.mark.parametrize("parallelism", [
    slow(autoplan.Parallelism(dp=1, tp=4, pp=1, tensor_system="expert-all-to-all")),
    slow(autoplan.Parallelism(dp=1, tp=2, pp=2)),
])  # fmt: skip
def test_a_load_balancing_loss_is_exact_where_experts_and_layers_are_split(
    parallelism: autoplan.Parallelism,
) -> None:
    result = parallelize_alone(balanced(3), "1x4 cpu", tokens(), parallelism=parallelism).verify()
    assert result.passed, str(result)


def test_a_load_balancing_loss_is_exact_over_the_data_axis() -> None:
    """It multiplies two sums over the batch, which are made whole over the ranks first; microbatches can't do that."""
    plan = parallelize_alone(balanced(2), "1x4 cpu", tokens(), parallelism=autoplan.Parallelism(dp=4))
    assert plan.parallelism.micro_batch == 2, "each rank's rows at once"
    result = plan.verify()
    assert result.passed, str(result)
