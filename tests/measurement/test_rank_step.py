"""What a rank's step is made of, by a profile of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.measurement.rank_step import HOST, OTHERS, STEP, UPDATE, Event, rank_step
from autoplan.measurement.spans import length, minus, union, within

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda s: (float(s[0]), float(s[0] + s[1]))))


def moments(spans: list[tuple[float, float]]) -> set[int]:
    return {at for start, end in spans for at in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_spans_are_sets_of_moments(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    a, b = union(one), union(other)
    assert all(first[1] < second[0] for first, second in pairwise(a))
    for found, wanted in (
        (a, moments(one)), (minus(a, b), moments(one) - moments(other)), (within(a, b), moments(one) & moments(other)),
    ):  # fmt: skip
        assert moments(found) == wanted and length(found) == len(wanted)


def event(name: str, cat: str, start: float, end: float, thread: int = 1, **told: str) -> Event:
    timed = {"ph": "X", "ts": 1e6 * start, "dur": 1e6 * (end - start), "tid": thread}
    return {**timed, "name": name, "cat": cat, "args": told}


def marks(end: float) -> list[Event]:
    return [event(STEP, "user_annotation", 0, end), event(UPDATE, "user_annotation", end - 2, end)]


def test_a_step_on_an_accelerator() -> None:
    group = {"Process Group Name": "7"}
    events = [
        *marks(20),
        event("gemm", "kernel", -2, -1),                     # before the step
        event("gemm", "kernel", 1, 4), event("gemm", "kernel", 3, 6),
        event("ncclDevKernel_AllReduce", "kernel", 5, 8, **group),  # 1 of 3 under the second product
        event("ncclDevKernel_SendRecv", "kernel", 9, 10, **{"Process Group Description": "mesh_pp"}),
        event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 7, 9),  # 1 of 2 beside the collective alone
        event("Memcpy DtoD", "gpu_memcpy", 12, 13),
        event("adamw", "kernel", 15, 17), event(UPDATE, "gpu_user_annotation", 14, 17),
        event("aten::mm", "cpu_op", 0, 20),
    ]  # fmt: skip
    found = rank_step(events, {"7": "tp"})
    assert found.compute_s == pytest.approx(5 + 1) and found.update_s == pytest.approx(2)
    assert found.waited_s == pytest.approx({"tp": 2, "pp": 1, HOST: 1})
    assert found.busy_s == pytest.approx({"tp": 3, "pp": 1, HOST: 2})
    assert found.step_s == pytest.approx(20)
    assert found.idle_s == pytest.approx(20 - 8 - 4)


def test_a_collective_without_a_known_group() -> None:
    found = rank_step([*marks(9), event("ncclKernel", "kernel", 1, 2, **{"Process Group Name": "0"})], {"7": "tp"})
    assert found.waited_s == pytest.approx({OTHERS: 1}) and found.compute_s == 0


def test_a_step_on_a_processor() -> None:
    events = [
        *marks(20),
        event("aten::mm", "cpu_op", 1, 4), event("aten::copy_", "cpu_op", 2, 3),
        event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 4, 9, thread=2),
        event("aten::mm", "cpu_op", 5, 8, thread=2),         # a thread of autograd's computes, too
        event("gloo:all_reduce", "user_annotation", 7, 11, thread=3),
        event("aten::copy_", "cpu_op", 8, 10, thread=3),     # gloo's own work is no compute
        event("aten::_fused_adamw_", "cpu_op", 18, 19),
    ]  # fmt: skip
    found = rank_step(events, {})
    assert found.compute_s == pytest.approx(6) and found.update_s == pytest.approx(1)
    assert found.waited_s == pytest.approx({OTHERS: 3}) and found.busy_s == pytest.approx({OTHERS: 4})
    assert found.idle_s == pytest.approx(10)


def test_a_trace_without_a_step() -> None:
    with pytest.raises(ValueError, match=STEP):
        rank_step([event("aten::mm", "cpu_op", 1, 4)], {})
