"""Experts' foldings among the candidates: what is pinned holds, what can't be is told, and text says it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from autoplan.errors import ParallelismError
from autoplan.ir.folding import Folding
from autoplan.options import Parallelism
from autoplan.report.words import parallelism_parts
from autoplan.search.budget import FULL
from autoplan.search.further.axes import over_experts, over_rows
from autoplan.search.space.candidates import SpaceLimits, all_candidates
from autoplan.search.space.one_line import read_text
from autoplan.search.space.pinned_checks import check_pinned
from tests.support.planning import parallelize_alone

LIMITS = SpaceLimits(devices=32, node=8, rows=64, segments=20, tokens=64, experts=16)


@pytest.mark.parametrize(
    "pinned",
    [{"ep": 4}, {"ep": 8, "etp": 1}, {"ep": 4, "etp": 2}, {"ep": 8, "cp": 2}, {"ep": 16, "tp": 4}, {"ep": 2, "cp": 8},
     {"ep": 8, "cp": 8, "tp": 2, "etp": 1}],
)  # fmt: skip
def test_candidates_lie_as_pinned(pinned: dict[str, int]) -> None:
    found = list(all_candidates(LIMITS, Parallelism(**pinned)))
    assert found
    for candidate in found:
        sizes = candidate.sizes
        assert all(sizes[name] == size for name, size in pinned.items())
        assert math.prod(sizes[name] for name in ("dp", "cp", "tp", "pp")) == candidate.mesh.devices == LIMITS.devices
        assert candidate.rows * sizes["dp"] * candidate.microbatches == LIMITS.rows
        tensor = candidate.tensor or (candidate.tp,)
        asked = Parallelism(**sizes, tensor=tensor)
        assert asked.folding == candidate.folding and asked.mesh(candidate.microbatches) == candidate.mesh


def test_both_ways_beside_a_tensor_axis_are_tried() -> None:
    found = {s.sizes["etp"] for s in all_candidates(LIMITS, Parallelism(ep=8, tp=4, pp=1))}
    assert found == {1, 4}
    assert {s.sizes["etp"] for s in all_candidates(LIMITS, Parallelism(ep=2, tp=4, pp=1))} == {4}  # fewer than tp


@pytest.mark.parametrize(
    ("pinned", "best", "contexts"),
    [({}, 1, {1}), ({}, 4, {1, 4}), ({"cp": 2}, 2, {2}), ({"cp": 1}, 1, {1}), ({"cp": 8, "ep": 2}, 8, set())],
)
def test_experts_are_tried_beside_the_context_that_won(pinned: dict[str, int], best: int, contexts: set[int]) -> None:
    won = next(all_candidates(LIMITS, Parallelism(cp=best)))
    work = SimpleNamespace(limits=LIMITS, feasible=list)
    found = over_experts(work, Parallelism(**pinned), SimpleNamespace(candidate=won))
    assert {s.cp for s in found} == contexts
    assert all(s.sizes["ep"] > 1 and s.tp == 1 for s in found)
    assert {s.sizes["ep"] for s in found} == ({2, 4, 8, 16} if contexts else set())
    assert {s.inner for s in found} == ({1, 2} if best == 4 else {1} if contexts else set()), "a part of cp, too"


@pytest.mark.parametrize(
    ("pinned", "best", "sizes"),
    [
        ({}, {"cp": 8, "tp": 2}, {(8, 2, 16), (4, 4, 16), (2, 8, 16)}),
        ({}, {"cp": 4, "tp": 1}, {(2, 2, 4)}),
        ({"cp": 4}, {"cp": 4, "tp": 2}, {(4, 2, 8)}),
        ({}, {"cp": 1, "tp": 4}, set()),
        ({}, {"cp": 32, "tp": 1}, set()),  # more ranks than experts
        ({"tp": 2}, {"cp": 4, "tp": 2}, set()),
        ({"ep": 4}, {"cp": 4, "tp": 2}, set()),
    ],
)
def test_experts_are_tried_over_all_ranks_of_a_row(pinned: dict, best: dict, sizes: set) -> None:
    won = next(all_candidates(LIMITS, Parallelism(**best)))
    work = SimpleNamespace(limits=LIMITS, feasible=list, budget=FULL)
    found = over_rows(work, Parallelism(**pinned), SimpleNamespace(candidate=won))
    assert {tuple(s.sizes[name] for name in ("cp", "tp", "ep")) for s in found} == sizes
    assert all(s.ep == 1 and s.folds == ("cp", "tp") and s.sizes["etp"] == 1 for s in found)


@pytest.mark.slow
def test_a_plan_of_long_rows_has_experts_context_and_tensor_axes_together() -> None:
    """Few key heads and many experts: a pin of all three was 5% quicker than what the search tried without it."""
    config = MixtralConfig(
        hidden_size=2048, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=2,
        num_local_experts=128, num_experts_per_tok=4, max_position_embeddings=131072, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        module = MixtralForCausalLM(config)
    ids = torch.empty((2, 131072), dtype=torch.int64, device="meta")
    plan = parallelize_alone(module, "4x8 h100-sxm", {"input_ids": ids, "labels": ids})
    chosen = plan.record.chosen.parallelism
    assert chosen.ep == chosen.cp * chosen.tp == 16 and chosen.etp == 1 and min(chosen.cp, chosen.tp) > 1


def test_replicas_beside_experts_may_have_one_data_rank_each() -> None:
    """Dense weights are sharded over ep then; without an axis to shard them over there are no such replicas."""
    found = list(all_candidates(LIMITS, Parallelism(dp=4, ep=2, tp=1, pp=8, dp_replicate=2)))
    assert {s.zero for s in found} == {1, 3}
    assert all((s.dp, s.ep, s.dp_replicate, s.wide) == (2, 2, 2, ("ep",)) for s in found)
    assert Folding(2).beside_data(1) == 2 and Folding(2, ("cp",)).beside_data(4) == 8
    assert Folding(1, ("cp2",), 2).beside_data(4) == 4
    assert Folding().beside_data(4) == 4 and Folding(1, ("tp",)).beside_data(1) == 1


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"ep": 3}, "ep=3: a mixture of 16 experts doesn't divide by it. give ep=1"),
        ({"etp": 1}, "etp=1: .*where experts are over ep. give ep too"),
        ({"ep": 4, "etp": 3, "tp": 4}, "etp=3: it is a part of tp=4"),
        ({"ep": 16, "etp": 4, "pp": 2}, "ep=16 etp=4: they multiply to 64, and a stage has 16 devices. give ep=4"),
        ({"ep": 2, "etp": 1, "tp": 4, "dp": 8, "pp": 1}, "ep=2 etp=1: experts lie over.* dp=8 tp=4 pp=1. give ep=4"),
        ({"ep": 2, "etp": 1, "tp": 4, "pp": 1}, "ep=2 etp=1: experts lie over.* tp=4 pp=1. give ep=4"),
        ({"ep": 2, "etp": 1, "tp": 32}, "ep=2 etp=1: experts lie over.* tp=32. leave ep and etp out"),
        ({"ep": 8, "dp": 8, "tp": 1, "dp_replicate": 2, "zero": 3}, "dp_replicate=2 with ep=8: .*smaller ep"),
        ({"ep": 4, "etp": 1, "tp": 4, "tensor_system": "ulysses"}, "tensor_system='ulysses': ulysses says what all"),
    ],
)
def test_what_does_not_fold_is_told(pinned: dict, said: str) -> None:
    with pytest.raises(ParallelismError, match=said):
        check_pinned(LIMITS, Parallelism(**pinned))


def test_a_headline_reads_back() -> None:
    chosen = Parallelism(dp=4, cp=2, tp=2, pp=2, ep=8, etp=1)
    sizes = parallelism_parts(chosen, None)[0]
    assert sizes == "dp=4 cp=2 tp=2 pp=2 ep=8 etp=1"
    assert read_text(sizes, ()) == chosen == read_text("dp4 cp2 tp2 pp2 ep8 etp1", ())
