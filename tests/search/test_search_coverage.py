"""What a report says of the space that was searched, and of what wasn't, is what the rules of the candidates say."""

from __future__ import annotations

import pytest

from autoplan.options import Parallelism
from autoplan.search.space import candidates
from autoplan.search.space.candidates import Candidate, SpaceLimits, all_candidates
from autoplan.search.space.coverage import left_out, searched

TWO_NODES = SpaceLimits(devices=16, node=8, rows=64, segments=20)
FREE = Parallelism()


def told(pinned: Parallelism, limits: SpaceLimits = TWO_NODES) -> tuple[str, ...]:
    return left_out(limits, pinned, set(all_candidates(limits, pinned)))


def test_what_a_pin_could_ask_for_is_told() -> None:
    assert told(FREE) == (
        "tp 16 (across nodes)",
        "several tensor axes",
        "schedule zero-bubble, pipedream, pipedream-vertical-sync, pipedream-2bw",
        "3, 5, 6, 7 stages on a rank",
        "offload of optimizer, parameters, activations, nvme",
        "replicas that step by themselves",
        "compressed gradients",
        "parameter servers",
    )


def test_what_is_pinned_is_not_left_out() -> None:
    assert not any(text.startswith("tp ") for text in told(Parallelism(tp=16)))
    assert not any("zero-bubble" in text for text in told(Parallelism(pipeline_schedule="zero-bubble")))
    assert not any("several tensor axes" in text for text in told(Parallelism(tensor=(2, 4))))


def test_an_offload_that_was_tried_without_a_pipeline_is_told_as_such() -> None:
    hosts = {s for s in all_candidates(TWO_NODES, Parallelism(pp=1, offload="optimizer"))}
    found = left_out(TWO_NODES, FREE, {*all_candidates(TWO_NODES, FREE), *hosts})
    assert "offload of optimizer under a pipeline" in found and "offload of parameters, activations, nvme" in found


def test_some_candidates_are_not_all() -> None:
    tried = {s for s in all_candidates(TWO_NODES, FREE) if s.micro_batch != 2}
    assert "some sizes of microbatches" in left_out(TWO_NODES, FREE, tried)


def test_one_device_leaves_nothing_to_split() -> None:
    one = SpaceLimits(devices=1, node=1, rows=8, segments=4)
    assert told(FREE, one) == ("offload of optimizer, parameters, activations, nvme",)


def test_it_follows_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a tensor axis tried across nodes, nobody would be told that it isn't."""
    meshes = [(1, 1, 1, 16), (1, 2, 1, 8), (2, 8, 1, 1)]
    monkeypatch.setattr(
        candidates, "meshes", lambda limits, pinned: (m for m in meshes if pinned.tp in (None, m[3]))
    )
    assert not any(text.startswith("tp ") for text in told(FREE))


def test_axes_of_the_context_and_of_experts_are_told_where_a_model_has_them() -> None:
    long = SpaceLimits(devices=16, node=8, rows=64, segments=20, tokens=64, experts=4)
    assert told(FREE, long)[2:4] == ("cp 2, 4, 8, 16", "ep 2, 4")
    assert not any(text.startswith("cp ") for text in told(Parallelism(cp=2), long))
    tried = {*all_candidates(long, FREE), *all_candidates(long, Parallelism(cp=4))}
    assert "cp 2, 8, 16" in left_out(long, FREE, tried) and "cp 1 to 4, tp" in searched(tried)


def of(limits: SpaceLimits, *pinned: Parallelism) -> set[Candidate]:
    return {candidate for each in pinned for candidate in all_candidates(limits, each)}


def test_axes_that_were_tried_apart_are_told_where_they_were_not_tried_together() -> None:
    long = SpaceLimits(devices=16, node=8, rows=64, segments=20, tokens=64, experts=4)
    apart = of(long, FREE, Parallelism(cp=2), Parallelism(ep=2, tp=1))
    found = left_out(long, FREE, apart)
    assert "ep beside cp" in found and "ep beside tp" in found and "cp beside tp" not in found
    pairs = apart | of(long, Parallelism(ep=2, tp=2), Parallelism(cp=2, ep=2, tp=1))
    assert [text for text in left_out(long, FREE, pairs) if "beside" in text] == ["ep beside cp beside tp"]
    every = {*pairs, *all_candidates(long, Parallelism(cp=2, ep=2, tp=2))}
    assert not any("beside" in text for text in left_out(long, FREE, every))


def test_axes_that_can_not_lie_together_are_not_missed() -> None:
    """Two devices have one axis for rows and columns; experts fold over either."""
    two = SpaceLimits(devices=2, node=2, rows=4, segments=2, tokens=64, experts=4)
    apart = of(two, FREE, Parallelism(cp=2), Parallelism(ep=2, tp=1))
    assert [text for text in left_out(two, FREE, apart) if "beside" in text] == ["ep beside cp", "ep beside tp"]


def test_what_was_searched_is_told() -> None:
    text = searched(set(all_candidates(TWO_NODES, FREE)))
    assert text == (
        "dp 1 to 16, tp 1 to 8, pp 1 to 16; microbatches of 1 to 64 rows; ZeRO 0 to 3; "
        "schedule 1f1b, gpipe, interleaved of 1 to 8 stages on a rank"
    )
