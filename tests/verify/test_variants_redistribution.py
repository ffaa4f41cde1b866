"""A plan without its casts: what redistributed a cast's result redistributes what was cast."""

from __future__ import annotations

from autoplan.ir.choice import Hop
from autoplan.ir.layout import I, Layout, R
from autoplan.verify.variants import redistributed

WHOLE, SPLIT = (Layout(dims=(), rest=(("tp", state),)) for state in (R, I))


def test_a_redistribution_of_what_is_gone_is_of_what_it_read() -> None:
    hops = (Hop("x", SPLIT, WHOLE), Hop("cast_2", WHOLE, SPLIT), Hop("add", SPLIT, WHOLE))
    gone = {"cast_1": "mul", "cast_2": "cast_1"}
    assert [hop.value for hop in redistributed(hops, gone)] == ["x", "mul", "add"]


def test_one_that_was_there_already_is_made_once() -> None:
    hops = (Hop("mul", SPLIT, WHOLE), Hop("cast", SPLIT, WHOLE), Hop("cast", WHOLE, SPLIT))
    found = redistributed(hops, {"cast": "mul"})
    assert [(hop.value, hop.source, hop.target) for hop in found] == [("mul", SPLIT, WHOLE), ("mul", WHOLE, SPLIT)]
