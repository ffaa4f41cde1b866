"""ZeRO-3 of a mixture: a segment's experts and what is beside them are gathered under the segment before, both."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from autoplan.options import Parallelism
from tests.support.rehearsed_llama import rehearsed

COMPUTE = 0


def test_a_segments_gathers_begin_together(tmp_path: Path) -> None:
    """Once a segment waits for what it gathers, its streams wait for all compute issued so far: a gather begun behind
    that hides nothing."""
    found = rehearsed(tmp_path / "out", Parallelism(dp=4, ep=2, tp=1, pp=1, zero=3, micro_batch=2), 4, experts=True)
    (trace,) = found.traces.values()
    forward = [call for call in trace.calls if call.during.startswith("forward")]
    gathers = [(n, call) for n, call in enumerate(forward) if call.name == "all-gather"]
    lines = dict.fromkeys(call.line for _, call in gathers)
    together = 0
    for each in ([(n, call) for n, call in gathers if call.line == line] for line in lines):
        pairs = [(a, b) for a, b in pairwise(each) if a[1].span != b[1].span]  # experts have a group of their own
        for (here, _), (there, second) in pairs[::2]:  # a line of several layers has a pair of each
            between = [call for call in forward[here:there] if call.kind == "join" and COMPUTE in call.of]
            assert not [call for call in between if call.stream == second.stream]
            together += 1
    assert together == 2
