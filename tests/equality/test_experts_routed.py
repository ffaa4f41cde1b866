"""Tokens that travel to their experts: what goes where, at what price, which way the search takes, what is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import MixtralConfig, MixtralForCausalLM

from autoplan import Parallelism, forbid
from autoplan.cost.operators.experts import Groups, Travel, busiest, share_reached
from autoplan.cost.operators.operator_seconds import operators_of, travel_of
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Compute
from autoplan.models.inputs import hf_inputs
from autoplan.ops.experts import experts
from autoplan.rules.nn.expert_capacity import rows_sent
from autoplan.runtime.collectives.mesh_axes import mesh_axes
from autoplan.runtime.ops import within_capacity
from autoplan.runtime.ops.experts.beside_shared import return_tokens, run_experts, send_tokens
from autoplan.runtime.ops.experts.dispatch import Message
from autoplan.runtime.ops.experts.routed import routed_experts, run
from autoplan.trace.pipeline import trace
from autoplan.verify.local_ranks import RankPool
from tests.support.mixtures import deepseek_v3
from tests.support.planning import parallelize_alone

RANKS, EXPERTS, CHOICES, TOKENS, HIDDEN, INNER = 4, 8, 2, 16, 16, 8
SWIGLU = "mul(silu(gate), up)"
Cuts = tuple[int, ...]
EVEN: Cuts = (0, 4, 8, 12, 16)
Kept = tuple[bool, bool]
ALL, PRODUCTS, NOTHING = (True, True), (True, False), (False, False)
"""What is kept: of the first products, and of what the activation makes of them."""


def operands(dtype: torch.dtype, chosen: str) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Tokens, indices, scores and weights, the same on every rank; ``chosen``: "any" experts or "two" for all."""
    random = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=random).requires_grad_()

    index = torch.stack([torch.randperm(EXPERTS, generator=random)[:CHOICES] for _ in range(TOKENS)])
    index = torch.tensor([[0, 1]]).repeat(TOKENS, 1) if chosen == "two" else index
    weights = [leaf(EXPERTS, INNER, HIDDEN), leaf(EXPERTS, INNER, HIDDEN), leaf(EXPERTS, HIDDEN, INNER)]
    return leaf(TOKENS, HIDDEN), index, leaf(TOKENS, CHOICES), weights


def farthest(rank: int, size: int, dtype: torch.dtype, chosen: str, cuts: Cuts, keep: Kept, chunks: int = 1) -> float:
    """How far this rank's results and gradients are from those of one device that has all tokens and experts."""
    (axis,) = mesh_axes(Mesh.of(tp=size), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))).values()
    hidden, index, scores, weights = operands(dtype, chosen)
    whole = experts(hidden, index, scores, weights[:2], weights[2], [], SWIGLU, False)
    gradient = torch.randn(whole.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    wanted = torch.autograd.grad(whole, [hidden, scores, *weights], gradient)
    mine, held = slice(cuts[rank], cuts[rank + 1]), slice(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)
    tokens, share = (x.detach()[mine].requires_grad_() for x in (hidden, scores))
    own = [weight.detach()[held].requires_grad_() for weight in weights]
    given = own[:2], own[2], [], SWIGLU, False, False, *keep
    if chunks:
        result = routed_experts(tokens, index[mine], share, *given, axes=(axis,), chunks=chunks)
    else:
        sent = send_tokens(tokens, index[mine], share, EXPERTS // size, axes=(axis,))
        result = return_tokens(run_experts(sent, *given))
    found = torch.autograd.grad(result, [tokens, share, *own], gradient[mine])
    pairs = [(result, whole[mine]), *zip(found, (w[mine] for w in wanted[:2]), strict=False)]
    pairs += zip(found[2:], (w[held] for w in wanted[2:]), strict=True)
    return max(float((one - other).detach().abs().sum()) for one, other in pairs)


@pytest.mark.parametrize(("dtype", "chosen", "cuts", "keep", "chunks"), [
    (torch.float64, "any", EVEN, ALL, 1), (torch.float64, "two", EVEN, NOTHING, 1),
    (torch.float64, "any", (0, 0, 5, 9, 16), NOTHING, 1), (torch.float32, "two", (0, 0, 5, 9, 16), PRODUCTS, 1),
    (torch.float64, "any", EVEN, PRODUCTS, 2), (torch.float64, "two", (0, 0, 5, 9, 16), NOTHING, 3),
    (torch.float64, "any", (0, 0, 1, 9, 16), ALL, 4), (torch.float64, "any", (0, 0, 5, 9, 16), PRODUCTS, 0),
    (torch.float64, "two", EVEN, NOTHING, 0), (torch.float32, "any", EVEN, ALL, 0),
])  # fmt: skip
def test_tokens_meet_their_experts_wherever_these_are(
    pool: RankPool, dtype: torch.dtype, chosen: str, cuts: Cuts, keep: Kept, chunks: int
) -> None:
    """Ranks that nobody sends anything, a rank that has no token, both; first products kept, or computed again; in
    chunks, of which some have no token; in three calls."""
    errors = pool.run(farthest, dtype, chosen, cuts, keep, chunks)
    assert max(errors) < (1e-10 if dtype == torch.float64 else 1e-3)


def farthest_within_capacity(
    rank: int, size: int, dtype: torch.dtype, capacity: float, keep: Kept, chunks: int
) -> float:
    """Likewise of two rows of the batch on each rank, whose experts take so many; nothing waits for the device."""
    (axis,) = mesh_axes(Mesh.of(tp=size), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))).values()
    random = torch.Generator().manual_seed(3)
    _, _, _, weights = operands(dtype, "any")
    hidden = torch.randn(2 * size, 6, HIDDEN, dtype=dtype, generator=random).requires_grad_()
    scores = torch.rand(2 * size, 6, CHOICES, dtype=dtype, generator=random).requires_grad_()
    index = torch.rand(2 * size, 6, EXPERTS, generator=random).topk(CHOICES).indices
    index = within_capacity(index, scores, EXPERTS, capacity)
    whole = experts(hidden, index, scores, weights[:2], weights[2], [], SWIGLU, False)
    gradient = torch.randn(whole.shape, dtype=dtype, generator=random)
    wanted = torch.autograd.grad(whole, [hidden, scores, *weights], gradient)
    mine, held = slice(2 * rank, 2 * rank + 2), slice(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)
    tokens, share = (x.detach()[mine].requires_grad_() for x in (hidden, scores))
    own = [weight.detach()[held].requires_grad_() for weight in weights]
    of, way = (own[:2], own[2], [], SWIGLU, False, False, *keep), {"axes": (axis,), "capacity": capacity}
    with patch("autoplan.runtime.host.read", side_effect=AssertionError("the host waits")):
        if chunks:
            result = routed_experts(tokens, index[mine], share, *of, **way, chunks=chunks)
        else:
            result = return_tokens(run_experts(send_tokens(tokens, index[mine], share, len(own[2]), **way), *of))
        found = torch.autograd.grad(result, [tokens, share, *own], gradient[mine])
    pairs = [(result, whole[mine]), *zip(found, (w[mine] for w in wanted[:2]), strict=False)]
    pairs += zip(found[2:], (w[held] for w in wanted[2:]), strict=True)
    return max(float((one - other).detach().abs().sum()) for one, other in pairs)


@pytest.mark.parametrize(("dtype", "capacity", "keep", "chunks"), [
    (torch.float64, 0.5, ALL, 1), (torch.float64, 1.25, NOTHING, 1), (torch.float32, 1.25, PRODUCTS, 1),
    (torch.float64, 0.5, NOTHING, 2), (torch.float64, 1.25, ALL, 3),
    (torch.float64, 0.5, PRODUCTS, 0), (torch.float64, 1.25, NOTHING, 0),
])  # fmt: skip
def test_as_many_rows_travel_as_a_capacity_admits(
    pool: RankPool, dtype: torch.dtype, capacity: float, keep: Kept, chunks: int
) -> None:
    """Full experts and empty rows, first products kept, or computed again; in chunks of rows, or whole where these
    don't divide."""
    errors = pool.run(farthest_within_capacity, dtype, capacity, keep, chunks)
    assert max(errors) < (1e-10 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize(("capacity", "rows"), [(0.5, 4), (1.25, 8), (1.5, 0), (9.0, 0)])
def test_rows_are_known_where_a_capacity_admits_fewer_than_all(capacity: float, rows: int) -> None:
    """Of two rows of six tokens with two choices among eight experts, two of which are on each rank."""
    assert rows_sent(2, 6, CHOICES, 2, RANKS, capacity) == rows
    travel = Travel(12, RANKS, EXPERTS, CHOICES, HIDDEN, HIDDEN, 4, 4, Groups(), capacity, rows)
    if rows:
        assert travel.rows == travel.mean_rows == RANKS * rows and travel.counts_bytes == 0
        assert travel.there_bytes == RANKS * rows * (4 * HIDDEN + 8 * CHOICES)
    else:
        assert travel.counts_bytes and travel.rows <= 12 * RANKS


def offsets(rank: int, size: int) -> set[int]:
    """Where in their storages those tensors begin that the operator returns, when its indices come as a GPU's do."""
    (axis,) = mesh_axes(Mesh.of(tp=size), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))).values()
    hidden, index, scores, weights = operands(torch.float64, "any")
    own = [weight.detach()[rank * EXPERTS // size : (rank + 1) * EXPERTS // size] for weight in weights]
    found = torch.nonzero_static

    def by_columns(x: Tensor, *, size: int) -> Tensor:
        return found(x, size=size).t().contiguous().t()

    with torch.no_grad(), patch.object(torch, "nonzero_static", by_columns):
        assert axis.group is not None
        peers = (axis.group.group_name, axis.size, axis.rank, list(axis.places))
        result, kept = run(hidden, index, scores, own[:2], own[2], [], SWIGLU, False, False, *ALL, 0, 2, *peers)
    return {x.storage_offset() for x in (result, *kept)}


def test_what_the_operator_returns_begins_with_its_storage(pool: RankPool) -> None:
    """Inductor's code for a GPU asserts that it begins at 16 bytes. There ``nonzero_static`` gives column after column,
    so that the second one begins at any offset."""
    assert set().union(*pool.run(offsets)) == {0}


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize(("dtype", "scores", "width"), [
    (torch.bfloat16, torch.float32, 7), (torch.bfloat16, torch.float32, 8), (torch.bfloat16, torch.bfloat16, 8),
    (torch.float32, torch.float32, 3), (torch.float64, torch.float64, 3), (torch.float32, torch.float64, 3),
])  # fmt: skip
def test_what_crosses_is_read_as_it_was(
    rows: int, dtype: torch.dtype, scores: torch.dtype, width: int
) -> None:
    """Bit by bit, also where a row of one dtype doesn't begin where another's may."""
    hidden, weights = torch.randn(rows, width, dtype=dtype), torch.rand(rows, 3, dtype=scores)
    index = torch.randint(1000, (rows, 3)) - 500
    found = Message.read(torch.cat(Message.parts(weights, index, hidden), 1), 3, scores)
    assert torch.equal(found.rows, hidden) and torch.equal(found.scores, weights) and torch.equal(found.index, index)


@pytest.mark.slow
def test_a_mixture_is_computed_again_where_memory_is_short_and_the_report_says_which(tmp_path: Path) -> None:
    """Kept where nothing is recomputed. Under a limit that admits less, products run again and tokens travel again; in
    any segment that recomputes selectively the activation does."""
    batch = {name: torch.zeros(8, 64, dtype=torch.int64) for name in ("input_ids", "labels")}
    config = MixtralConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2,
        num_local_experts=4, vocab_size=128, use_cache=False,
    )  # fmt: skip
    found = {}
    for recompute in ("none", "selective"):
        pins = Parallelism(dp=2, tp=1, pp=1, ep=2, micro_batch=4, recompute=recompute)
        plan = parallelize_alone(MixtralForCausalLM(config), "1x2 cpu", batch, parallelism=pins)
        program = (plan.export(tmp_path / recompute) / "program.py").read_text()
        found[recompute] = plan, program, " ".join(plan.report(verbose=True).split())
    (kept, source, told), (again, dropping, told_again) = found.values()
    assert "keeps(self)" not in source and "first products are kept for the backward" in told
    assert "keep=keeps(self)" in dropping and "first products are computed again" in told_again
    assert kept.predicted.peak_bytes[0].activations > 1.3 * again.predicted.peak_bytes[0].activations
    assert kept.predicted.step_time_s < again.predicted.step_time_s
    assert again.verify().passed
    chosen = again.record.chosen
    fewer = [[at for at in block.again if "experts" not in at[0]] for block in chosen.blocks]
    blocks = tuple(replace(b, again=tuple(names)) for b, names in zip(chosen.blocks, fewer, strict=True))
    middle = replace(again, record=replace(again.record, chosen=replace(chosen, blocks=blocks)))
    source = (middle.export(tmp_path / "middle") / "program.py").read_text()
    assert "keep_activated=keeps(self)" in source and "keep=keeps(self)" not in source
    assert middle.verify().passed


def test_how_likely_a_rank_is_reached_is_the_share_of_choices_that_reach_it() -> None:
    for count, here, choices in ((8, 2, 2), (6, 3, 1), (6, 2, 4), (4, 4, 2)):
        found = [any(expert < here for expert in chosen) for chosen in combinations(range(count), choices)]
        assert share_reached(count, here, choices) == pytest.approx(sum(found) / len(found))


@pytest.mark.parametrize(("count", "kept"), [(4, 2), (4, 1), (3, 2), (6, 3), (1, 1)])
@pytest.mark.parametrize(("here", "choices"), [(1, 2), (2, 3), (3, 1), (4, 3), (6, 2), (12, 3)])
def test_a_router_that_keeps_few_groups_reaches_fewer_ranks(count: int, kept: int, here: int, choices: int) -> None:
    """Counted over all groups that may be kept, all choices within them and all ranks, which may cut groups."""
    each, reached = 12 // count, []
    for groups in combinations(range(count), kept):
        within = [expert for group in groups for expert in range(group * each, (group + 1) * each)]
        for chosen in combinations(within, choices):
            reached += [any(e // here == rank for e in chosen) for rank in range(12 // here)]
    assert Groups(count, kept).share_reached(12, here, choices) == pytest.approx(sum(reached) / len(reached))


def test_the_groups_that_a_router_keeps_are_read_off_its_graph() -> None:
    """DeepSeek-V3's: two groups of four experts, of which a token's two choices are in one. So of two ranks half of the
    tokens go to each, where three quarters and more would without the limit."""
    batch = {name: torch.zeros(8, 16, dtype=torch.int64, device="meta") for name in ("input_ids", "labels")}
    plan = parallelize_alone(
        deepseek_v3().to("meta"), "1x2 cpu", batch, parallelism=Parallelism(dp=2, tp=1, pp=1, ep=2, zero=0),
        constraints=[forbid("autoplan.experts", "P", axis="ep")], effort="fast",
    )  # fmt: skip
    (travel,) = {
        travel_of(operator, dict(choice.strategies)[name], plan.record.chosen.mesh)
        for block, choice in zip(plan.record.model.blocks, plan.record.chosen.blocks, strict=True)
        for name, operator in operators_of(block, fuses=False).items()
        if operator.node.op == "autoplan.experts"
    }
    assert travel is not None and travel.groups == Groups(2, 1)
    assert travel.mean_rows == pytest.approx(travel.tokens * 2 / 2) and 1 - 6 / 28 > 0.75
    told = " ".join(plan.report(verbose=True).split())
    assert "independently within 1 of 2 groups, as the router limits them, of which" in told


def test_a_router_without_groups_has_no_limit() -> None:
    with torch.device("meta"):
        model = mixture(8, 2)
    blocks = trace(model, hf_inputs(model, 2, 16), training=True).blocks
    mixtures = [o for b in blocks for o in operators_of(b, fuses=False).values() if o.node.op == "autoplan.experts"]
    assert {operator.groups for operator in mixtures} == {Groups()}


def test_rows_are_those_that_even_and_independent_choices_send() -> None:
    """In the mean, and on the busiest of the ranks, which the bound is above by little."""
    travel = Travel(500, RANKS, EXPERTS, CHOICES, HIDDEN, HIDDEN, 2, 4)
    random, most, mean = torch.Generator().manual_seed(0), 0.0, 0.0
    for _ in range(50):
        index = torch.rand(500 * RANKS, EXPERTS, generator=random).topk(CHOICES).indices
        rank = index // (EXPERTS // RANKS)
        rows = torch.stack([(rank == r).any(1).sum() for r in range(RANKS)]).double()
        most, mean = most + float(rows.max()) / 50, mean + float(rows.mean()) / 50
    assert travel.mean_rows == pytest.approx(mean, rel=0.01)
    assert most <= travel.rows <= 1.05 * most
    assert busiest(7.0, 1) == 7, "one rank has what there is"


def mixture(experts: int, choices: int) -> nn.Module:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = MixtralConfig(
        **sizes, num_hidden_layers=1, num_local_experts=experts, num_experts_per_tok=choices, vocab_size=512
    )
    with torch.device("meta"):
        return MixtralForCausalLM(config).train()


@pytest.mark.parametrize(("experts", "choices", "ranks", "body", "told"), [
    (8, 1, 8, "routed_experts", "split over tp=8, tokens travel to them by all-to-all: each goes once"),
    (8, 8, 2, "local_experts", "split over tp=2, where every rank has all tokens"),
])  # fmt: skip
def test_the_cheaper_of_the_two_ways_is_taken_and_told(
    experts: int, choices: int, ranks: int, body: str, told: str
) -> None:
    """Where a token needs few of the ranks it travels; where it needs all of them everything is everywhere anyway."""
    batch = {name: torch.zeros(64, 1024, dtype=torch.int64, device="meta") for name in ("input_ids", "labels")}
    model, cluster = mixture(experts, choices), f"1x{ranks} h100-sxm"
    plan = parallelize_alone(model, cluster, batch, parallelism="expert-parallel")
    computes = [s for block in plan.lowered.blocks for s in block.body if isinstance(s, Compute)]
    assert [s.body for s in computes if s.op == "autoplan.experts"] == [body]
    assert told in " ".join(plan.report(verbose=True).split())
    assert "evenly and independently" in " ".join(plan.report(verbose=True).split())


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("backend", "chunks", "keep"),
    [("aot_eager", 1, True), ("inductor", 1, True), ("aot_eager", 3, False), ("inductor", 2, True)],
)
def test_a_compiler_takes_tokens_that_travel_whole(backend: str, chunks: int, keep: bool) -> None:
    """No graph break: what differs from step to step is inside one operator, and of what it keeps the sizes are."""
    with RankPool(2, timeout_s=240) as pool:
        assert pool.run(compiled_error, backend, chunks, keep) == [0.0, 0.0]


def compiled_error(rank: int, size: int, backend: str, chunks: int, keep: bool) -> float:
    (axis,) = mesh_axes(Mesh.of(tp=size), init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))).values()
    hidden, index, scores, weights = operands(torch.float64, "any")
    own = [weight.detach()[rank * 4 : rank * 4 + 4].requires_grad_() for weight in weights]

    def run(hidden: Tensor, scores: Tensor) -> Tensor:
        given = 2 * hidden, index, scores, own[:2], own[2], [], SWIGLU, False
        return routed_experts(*given, keep=keep, axes=(axis,), chunks=chunks).square()

    plain, compiled = (
        torch.autograd.grad(f(hidden, scores).sum(), [hidden, scores, *own])
        for f in (run, torch.compile(run, backend=backend, fullgraph=True))
    )
    return max(float((one - other).abs().max()) for one, other in zip(plain, compiled, strict=True))
