"""No bound of a candidate is above a plan of it, gradients that are summed over the tensor axis included."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.graph import Block, Model, Typed
from autoplan.option_values import OFFLOADS, RECOMPUTE
from autoplan.options import Parallelism, Training
from autoplan.search.intra_op.solve import Weights
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, begin, candidates
from autoplan.search.step_seconds import line_s
from tests.support.hand_made import chain, f32, llama, node, sharing
from tests.support.sampling import slow


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("cluster", ["1x4 h100-sxm", slow("1x4 a100-sxm-80gb")])
def test_no_bound_is_above_a_plan(cluster: str, pp: int) -> None:
    spec, pins = ClusterSpec.parse(cluster), Parallelism(dp=1, pp=pp)
    work = begin(llama(batch=16, seq=256, hidden=256, ffn=512, vocab=512), spec, Training(precision="fp32"), pins)
    wall, plans, schedules = spec.usable_bytes, 0, set[str]()
    asked = [pins, replace(pins, pipeline_schedule="zero-bubble", micro_batch=4)][:pp]
    for candidate in (candidate for one in asked for candidate in candidates(work.limits, one)):
        found = work.evaluate(candidate, wall)
        if found is None or candidate.tp == 1:
            continue
        assert line_s(found.stage_model, found.stages) == pytest.approx(found.timeline.step_s, rel=1e-12)
        schedules.add(candidate.schedule)
        plans += any(found.stage_model.summed_bytes((0, len(found.stage_model.chain))).values())
        for bound_s in bounds(work, candidate, wall):
            assert bound_s <= found.step_s * (1 + 1e-9), str(candidate)
    assert plans, "no plan sums gradients over the tensor axis"
    assert pp == 1 or {"interleaved", "zero-bubble"} <= schedules


@pytest.mark.parametrize(("pp", "tp"), [(1, 4), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_no_bound_is_above_a_plan_under_a_tight_wall(pp: int, tp: int) -> None:
    """Walls from the least that fits to ample: what fits is never quicker than the bound, which bytes raise."""
    spec = ClusterSpec.parse("1x4 h100-sxm")
    model = llama(layers=6, batch=16, seq=512, hidden=512, ffn=1536, vocab=512)
    pins = Parallelism(pp=pp, tp=tp)
    work = begin(model, spec, Training(precision="bf16-mixed"), pins)
    evaluator, plans, more = work.evaluator, 0, 0
    for candidate in candidates(work.limits, pins):
        leanest, ample = evaluator.leanest(candidate), evaluator.evaluate(candidate, spec.usable_bytes)
        assert ample is not None
        low, high = (max(m.total for m in found.memory) for found in (leanest, ample))
        for share in (0.0, 0.15, 0.4, 0.7):
            wall = float(low + share * (high - low)) + 1.0
            found = evaluator.evaluate(candidate, wall)
            if found is None:
                continue
            plans += 1
            rough_s, bound_s = bounds(work, candidate, wall)
            assert rough_s <= bound_s <= found.step_s * (1 + 1e-9), (str(candidate), share)
            assert evaluator.bounds.of_cuts_s(found.stage_model, found.point, wall) <= found.step_s * (1 + 1e-9)
            more += bound_s > rough_s * (1 + 1e-3)
    assert plans >= 10 and more >= 2


def test_cuts_that_bytes_slow_down_are_given_up_unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, pins = ClusterSpec.parse("1x4 h100-sxm"), Parallelism(pp=2, tp=1, zero=1, micro_batch=2, virtual_stages=2)
    model = llama(layers=14, batch=64, seq=1024, hidden=256, ffn=768, vocab=512)
    work = begin(model, spec, Training(precision="bf16-mixed"), pins)
    (candidate,) = (s for s in candidates(work.limits, pins) if s.schedule == "interleaved")
    evaluator, leanest = work.evaluator, work.evaluator.leanest(candidate)
    assert leanest is not None
    wall = leanest.over_bytes(0.0) + 1.0
    found = evaluator.evaluate(candidate, wall)
    assert found is not None
    cuts_s = evaluator.bounds.of_cuts_s(found.stage_model, found.point, wall)
    assert evaluator.bounds.of_point_s(candidate, found.point) * 1.001 < cuts_s <= found.step_s * (1 + 1e-9)
    monkeypatch.setattr(evaluator, "chunks", lambda *_: pytest.fail("searched"))
    assert evaluator.with_point(candidate, found.point, wall, cuts_s) is None


def bounds(work: SearchState, candidate: Candidate, wall: float) -> tuple[float, float]:
    """Without a memory limit, and under it."""
    return work.evaluator.bounds.unlimited_s(candidate), work.evaluator.bounds.limited_s(candidate, wall)


def test_what_is_known_of_blocks_serves_all_schedules() -> None:
    pins, model = Parallelism(pp=2, tp=1, zero=1, micro_batch=1), llama(layers=4, batch=8, seq=64, hidden=64, ffn=128)
    work = begin(model, ClusterSpec.parse("1x4 h100-sxm"), Training(precision="bf16-mixed"), pins)
    one, other = (next(s for s in candidates(work.limits, pins) if s.schedule == n) for n in ("1f1b", "interleaved"))
    assert work.evaluator.bounds.known(one) is work.evaluator.bounds.known(other)


@pytest.mark.parametrize("tp", [slow(2), 1])
@pytest.mark.parametrize("kind", [*RECOMPUTE, *OFFLOADS])
def test_no_bound_is_above_a_plan_that_keeps_what_is_asked(kind: str, tp: int) -> None:
    """Recomputed alike, or with the host's memory."""
    asked = Parallelism(recompute=kind) if kind in RECOMPUTE else Parallelism(offload=kind)
    spec, pins = ClusterSpec.parse("1x4 h100-sxm"), replace(asked, pp=1, tp=tp, micro_batch=4)
    model = llama(layers=4, batch=32, seq=512, hidden=512, ffn=1536, vocab=512)
    check_walls(begin(model, spec, Training(precision="bf16-mixed"), pins), pins, spec.usable_bytes)


def test_no_bound_is_above_an_eager_plan() -> None:
    """An eager program keeps less than the operator problem counts."""
    spec, pins = ClusterSpec.parse("1x4 a100-sxm-80gb"), Parallelism(pp=2, tp=2, micro_batch=2, zero=1)
    model = llama(layers=2, batch=4, seq=128, hidden=512, ffn=512, kv=4, vocab=512)
    check_walls(begin(model, spec, Training(precision="fp32", compile=False), pins), pins, spec.usable_bytes)


def test_no_bound_is_above_a_plan_that_shares_parameters_between_blocks() -> None:
    """Two segments of the block that holds most, and two of another with their parameters."""
    spec, pins = ClusterSpec.parse("1x2 h100-sxm"), Parallelism(tp=2, pp=1, micro_batch=2048, zero=1)
    check_walls(begin(shared_between_blocks(), spec, Training(precision="bf16-mixed"), pins), pins, spec.usable_bytes)


ALL_ONE, HALF = dict.fromkeys(range(2, 7), 1), dict.fromkeys(range(2, 5), 1)  # of layers 1, 2, …


@pytest.mark.parametrize(
    ("layers", "like", "pins"),
    [
        (6, ALL_ONE, Parallelism(pp=1, tp=2, micro_batch=4)),
        (6, ALL_ONE, Parallelism(pp=1, tp=1, micro_batch=4, zero=2)),
        slow((6, ALL_ONE, Parallelism(pp=2, tp=1, micro_batch=4, zero=0))),
        (8, HALF, Parallelism(pp=2, tp=2, micro_batch=4, zero=0, recompute="none", pipeline_schedule="1f1b")),
        (8, HALF, Parallelism(pp=2, tp=2, micro_batch=4, zero=0, virtual_stages=2)),
    ],
)
def test_no_bound_is_above_a_plan_whose_layers_share_parameters(
    layers: int, like: dict[int, int], pins: Parallelism
) -> None:
    model = llama(layers=layers, batch=16, seq=128, hidden=512, ffn=1536, vocab=512)
    spec = ClusterSpec.parse("1x4 h100-sxm")
    work = begin(sharing(model, like), spec, Training(precision="bf16-mixed"), pins)
    check_walls(work, pins, spec.usable_bytes)


def test_bytes_of_parameters_count_as_often_as_they_are_held() -> None:
    """Of operators that store least and keep more, what is kept can be recomputed: where little else fits they are
    found, and no bound is above their plan."""
    spec, free = ClusterSpec.parse("1x2 h100-sxm"), Parallelism()
    sizes = {"seq": 2048, "hidden": 4096, "ffn": 14336, "heads": 32, "kv": 8, "vocab": 128256}
    model = llama(layers=29, batch=256, **sizes, dtype="bfloat16")  # type: ignore[arg-type]
    work, wall = begin(model, spec, Training(precision="bf16-mixed"), free), spec.usable_bytes
    (candidate,) = (s for s in candidates(work.limits, free) if s.tp == 2 and s.micro_batch == 2)
    point = work.operators.priced(candidate, Weights(1e-9, 0.0))
    leanest, found = work.evaluator.with_point(candidate, point, wall), work.evaluate(candidate, wall)
    assert leanest is not None and found is not None and found.step_s <= leanest.step_s * 1.003
    assert max(bounds(work, candidate, wall)) <= leanest.step_s * (1 + 1e-9)


def test_the_leanest_are_found_by_bytes_and_time_together() -> None:
    """Bytes that count for far more than time are those that the operator problem knows: what is made on the way then
    grows, and nothing fits."""
    spec, pins = replace(ClusterSpec.parse("1x4 h100-sxm"), memory_bytes=492_000_000), Parallelism(tp=2)
    model = llama(layers=2, batch=8, seq=1024, hidden=1024, ffn=4096, vocab=512, kv=8, tie=1)
    work = begin(model, spec, Training(precision="bf16-mixed"), pins)
    wanted = (2, 1, 2, 0, "1f1b")
    (candidate,) = (
        s for s in candidates(work.limits, pins) if (s.pp, s.dp, s.micro_batch, s.zero, s.schedule) == wanted
    )
    assert work.evaluate(candidate, spec.usable_bytes) is not None


def check_walls(work: SearchState, pins: Parallelism, usable: float) -> None:
    plans = 0
    for candidate in candidates(work.limits, pins):
        leanest, ample = work.evaluator.leanest(candidate), work.evaluator.evaluate(candidate, usable)
        assert leanest is not None and ample is not None
        low, high = (max(m.total for m in found.memory) for found in (leanest, ample))
        for share in (0.0, 0.2, 0.5, 0.7):
            wall = float(low + share * (high - low)) + 1.0
            found = work.evaluator.evaluate(candidate, wall)
            plans += found is not None
            fitting = [one.step_s for one in (found, leanest) if one is not None and one.over_bytes(wall) == 0]
            for bound_s in bounds(work, candidate, wall):
                assert bound_s <= min(fitting, default=math.inf) * (1 + 1e-9), (str(candidate), share)
    assert plans


def shared_between_blocks(rows: int = 8192, width: int = 512, hidden: int = 2048) -> Model:
    x, h = f32(rows, width), f32(rows, hidden)

    def layer(name: str, pairs: int) -> Block:
        nodes, parameters, last = [], [], "x"
        for i in range(pairs):
            number = str(i or "")
            up, down = f"up{number}.weight", f"down{number}.weight"
            parameters += [Typed(up, f32(hidden, width)), Typed(down, f32(width, hidden))]
            nodes += [
                node(f"up{i}", "aten.linear.default", h, f"%{last}", f"%{up}", module=f"u{i}"),
                node(f"act{i}", "aten.gelu.default", h, f"%up{i}", module=f"a{i}"),
                node(f"down{i}", "aten.linear.default", x, f"%act{i}", f"%{down}", module=f"d{i}"),
                node(f"o{i}", "aten.add.Tensor", x, f"%{last}", f"%down{i}", module=f"o{i}"),
            ]
            last = f"o{i}"
        return Block(name, (Typed("x", x),), (), tuple(parameters), (), tuple(nodes), (last,))

    loss = (
        node("difference", "aten.sub.Tensor", x, "%x", "%y"),
        node("square", "aten.pow.Tensor_Scalar", x, "%difference", 2),
        node("loss", "aten.mean.dim", f32(), "%square", (0, 1), False),
    )
    enters = node("first", "aten.linear.default", x, "%inputs", "%weight", module="first")
    first = Block("First", (), (Typed("inputs", x),), (Typed("weight", f32(width, width)),), (), (enters,), ("first",))
    last = Block("Loss", (Typed("x", x),), (Typed("y", x),), (), (), loss, ("loss",))
    tied = {f"{a}.{name}": f"{b}.{name}" for a, b in ((3, 1), (4, 2)) for name in ("up.weight", "down.weight")}
    return chain(
        "Shared",
        (Typed("inputs", x), Typed("targets", x)),
        (first, layer("Heavy", 4), layer("Light", 1), last),
        (0, 1, 1, *([2] * 6), 3),
        externals={"inputs": "inputs", "y": "targets"},
        tied=tied,
    )


@pytest.mark.parametrize("kind", RECOMPUTE)
def test_where_operators_leave_no_choice_the_bound_is_the_plan(kind: str) -> None:
    """One device for each replica: how many segments are recomputed, of which a bound in fractions says less, is all
    that is sought."""
    spec, pins = ClusterSpec.parse("1x2 h100-sxm"), Parallelism(pp=1, tp=1, offload="none", recompute=kind)
    model = llama(layers=6, batch=16, seq=512, hidden=512, ffn=1536, vocab=512)
    work, plans, recomputed = begin(model, spec, Training(precision="bf16-mixed"), pins), 0, 0
    for candidate in candidates(work.limits, pins):
        leanest, ample = work.evaluator.leanest(candidate), work.evaluator.evaluate(candidate, spec.usable_bytes)
        assert leanest is not None and ample is not None
        low, high = (found.memory[0].total for found in (leanest, ample))
        for share in (0.05, 0.3, 0.6):
            found = work.evaluator.evaluate(candidate, float(low + share * (high - low)) + 1.0)
            if found is None:
                continue
            plans += 1
            recomputed += found.recomputes
            assert found.bound_s == pytest.approx(found.step_s, rel=1e-9), (str(candidate), share)
    assert plans >= 10 and (recomputed >= 5 or kind == "none")
