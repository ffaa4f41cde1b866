"""Which candidates are tried, and what is said where none is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism
from autoplan.search.space.candidates import SpaceLimits, all_candidates, batch_ways
from autoplan.search.state import candidates


def schedules_of(limits: SpaceLimits, pinned: Parallelism) -> set[str]:
    return {candidate.schedule for candidate in all_candidates(limits, pinned)}


def test_one_microbatch_is_not_interleaved() -> None:
    found = list(all_candidates(SpaceLimits(devices=4, node=4, rows=16, segments=10), Parallelism()))
    assert {candidate.schedule for candidate in found} == {"1f1b", "gpipe", "interleaved"}
    assert min(candidate.microbatches for candidate in found if candidate.schedule == "interleaved") > 1


def test_few_microbatches_go_by_either_order_of_one_stage_on_a_rank() -> None:
    limits = SpaceLimits(devices=4, node=4, rows=16, segments=10)
    four = [s for s in all_candidates(limits, Parallelism(pp=4)) if s.virtual_stages == 1]
    tried = {many: {s.schedule for s in four if s.microbatches == many} for many in {s.microbatches for s in four}}
    assert tried == {1: {"gpipe"}, 2: {"1f1b", "gpipe"}, 4: {"1f1b"}, 8: {"1f1b"}, 16: {"1f1b"}}
    pinned = all_candidates(limits, Parallelism(pp=4, pipeline_schedule="1f1b"))
    assert {s.microbatches for s in pinned} == {1, 2, 4, 8, 16}


def test_every_level_of_zero_is_tried_where_it_differs() -> None:
    """An engine of pipelines reduces gradients once, whether or not they are to be split: ZeRO-2 is ZeRO-1 there."""
    found = list(all_candidates(SpaceLimits(devices=4, node=4, rows=16, segments=10), Parallelism()))
    assert {s.zero for s in found if s.pp == 1 and s.dp > 1} == {0, 1, 2, 3}
    assert {s.zero for s in found if s.pp > 1 and s.dp > 1} == {0, 1, 3}


def test_a_replica_for_each_node_is_tried_where_a_node_holds_a_part_of_the_data_axis() -> None:
    found = list(all_candidates(SpaceLimits(devices=16, node=8, rows=64, segments=10), Parallelism()))
    tried = {(s.dp, s.tp, s.pp): {t.dp_replicate for t in found if (t.dp, t.tp, t.pp) == (s.dp, s.tp, s.pp)}
             for s in found}  # fmt: skip
    assert tried[16, 1, 1] == tried[4, 4, 1] == {1, 2}
    assert tried[8, 1, 2] == tried[2, 8, 1] == tried[2, 2, 4] == {1}
    assert all(s.zero for s in found if s.dp_replicate > 1)


def test_zero_bubble_has_to_be_asked_for() -> None:
    eager, compiled = (SpaceLimits(devices=4, node=4, rows=16, segments=10, fuses=fuses) for fuses in (False, True))
    assert "zero-bubble" not in schedules_of(eager, Parallelism())
    assert "zero-bubble" not in schedules_of(compiled, Parallelism())
    assert schedules_of(compiled, Parallelism(pipeline_schedule="zero-bubble")) == {"zero-bubble"}
    for kept_out in (Parallelism(recompute="full"), Parallelism(zero=3), Parallelism(pipeline_schedule="1f1b")):
        assert "zero-bubble" not in schedules_of(eager, kept_out)


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        (Parallelism(dp=4, dp_replicate=2, zero=0), "dp_replicate=2 without ZeRO: it counts replicas"),
        (Parallelism(dp=4, dp_replicate=3), "dp_replicate=3 with dp=4: each replica has as many"),
        (Parallelism(dp=4, dp_replicate=4, zero=3), "dp_replicate=4 with dp=4: each replica has one rank"),
        (Parallelism(pp=4, virtual_stages=4), "16 stages need as many parts, and the model has 10"),
        (Parallelism(pp=8, pipeline_schedule="interleaved"), "16 stages need as many parts"),
        (Parallelism(pp=1, pipeline_schedule="zero-bubble"), "zero-bubble needs a pipeline"),
        (Parallelism(pp=1, virtual_stages=2), "several stages on a rank needs a pipeline"),
        (Parallelism(compression="int8", compression_within=3), "compression_within=3 needs dp=6 or another multiple"),
        (Parallelism(compression="int8", compression_within=8), "compression_within=8 needs dp=16 or another multiple"),
        (Parallelism(dp=8, all_reduce="hierarchical"), "all_reduce='hierarchical' needs dp with two ranks or more"),
        (Parallelism(dp=8, tp_overlap=2), "tp_overlap needs tp=2 or more"),
        (Parallelism(compression="int8", compression_within=8, tp_overlap="auto"), "tp_overlap=auto .*dp=16"),
    ],
)
def test_a_chain_that_is_too_short_is_named(pinned: Parallelism, said: str) -> None:
    with pytest.raises(ParallelismError, match=said):
        candidates(SpaceLimits(devices=8, node=8, rows=16, segments=10), pinned)


def test_gradients_are_summed_as_pinned_or_a_mesh_is_no_candidate() -> None:
    limits, pinned = SpaceLimits(devices=8, node=4, rows=16, segments=10), Parallelism(zero=0)
    sizes = {rule: {c.dp for c in all_candidates(limits, replace(pinned, all_reduce=rule))}
             for rule in (None, "tree", "hierarchical")}  # fmt: skip
    assert sizes == {None: {1, 2, 4, 8}, "tree": {2, 4, 8}, "hierarchical": {4, 8}}
    within = {c.tp for c in all_candidates(limits, replace(pinned, all_reduce="hierarchical", dp=4))}
    assert within == {2}  # beside pp=2, whose stages have a node each, there is one level


@pytest.mark.parametrize(
    ("compressed", "goes_with"),
    [
        (Parallelism(compression="powersgd"), {"ep", "cp"}),
        (Parallelism(compression="powersgd", compression_within=2), {"ep", "cp"}),
        (Parallelism(compression="int8"), set()),
        (Parallelism(compression="topk", compression_within=2), set()),
    ],
)
def test_axes_beside_which_compression_is_refused_are_not_tried_beside_it(
    compressed: Parallelism, goes_with: set[str]
) -> None:
    """The search tries a context's and an experts' axis by itself, too, past the checks of what is pinned."""
    limits = SpaceLimits(devices=8, node=8, rows=16, segments=10, tokens=64, experts=8)
    tried = {axis for axis in ("ep", "cp") if list(all_candidates(limits, replace(compressed, **{axis: 2})))}
    assert tried == goes_with


def test_a_system_that_is_no_layout_splits_no_rows_further() -> None:
    """Tables are placed by a system of their own, on a tensor axis that auto has found before."""
    assert batch_ways(Parallelism(tp=4, tensor=(4,), tensor_system="table-parallel")) == 1
