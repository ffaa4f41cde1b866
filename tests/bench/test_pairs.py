"""Counts of the pairs: the program makes no more calls, and keeps no more, than what is written by hand; both sides
train the same. `make bench-program` measures their seconds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench.pairs.cases import CASES, PRECISIONS
from tests.bench.pairs.contest import Row, Side, contest
from tests.bench.pairs.measured import Counted
from tests.bench.pairs.models import SMALL
from tests.bench.pairs.table import above, pairs_table
from tests.support.sampling import sampled

LLAMA = [case for case in CASES if not CASES[case].compiled and case != "Megatron's layer"]
MODELS = [*((case, "Llama") for case in LLAMA if "Llama" in CASES[case].models), ("DDP, no_sync", "Mixtral")]
CELLS = sampled(
    [(*pair, precision) for pair in MODELS for precision in PRECISIONS],
    [("fully_shard, ZeRO-3", "Llama", "bf16-mixed")],
)
CALLS, SAVED = 1.04, 1.005  # what is done once a step, and the batch's microbatches, weigh more in a small model
FEWER = [("DDP, no_sync", "Mixtral", "selective", 0.5), ("fully_shard, ZeRO-1", "GPT-2, dropout", None, 0.6)]
PER_RANK = sampled(["the module, drawn per rank", "DDP, drawn per rank"], ["DDP, drawn per rank"])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "model", "precision"), CELLS)
def test_the_program_is_as_lean_as_by_hand(case: str, model: str, precision: str) -> None:
    row = contest(case, model, precision, SMALL, 0)
    ours, theirs = row.losses
    assert ours == pytest.approx(theirs, abs=2e-3)
    assert ours[0] - ours[-1] > 0.05, "nothing is learned"
    assert 0 < row.calls[0] <= CALLS * row.calls[1]
    assert 0 < row.saved[0] <= SAVED * row.saved[1]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "model", "recompute", "share"), FEWER)
def test_the_program_keeps_much_less(case: str, model: str, recompute: str | None, share: float) -> None:
    """A mixture's products are computed again where that is asked for, masks are hashed again."""
    row = contest(case, model, "fp32", SMALL, 0, recompute)
    assert row.saved[0] <= share * row.saved[1]
    assert row.losses[0] == pytest.approx(row.losses[1], abs=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("case", PER_RANK)
def test_drawn_per_rank_attention_drops_as_the_modules_own(case: str) -> None:
    """With torch's own kernels on both sides; masks of elements take a byte, theirs are in their dtype."""
    row = contest(case, "GPT-2, dropout in attention", "fp32", SMALL, 0)
    assert 0 < row.calls[0] <= CALLS * row.calls[1]
    assert 0 < row.saved[0] <= 0.95 * row.saved[1]
    assert row.losses[0] == pytest.approx(row.losses[1], abs=5e-2)
    dropped = [side.counted.calls["aten.bernoulli_.float"] for side in row.ours]
    assert dropped == [SMALL.layers * CASES[case].microbatches] * CASES[case].ranks, "attention's alone"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Megatron's layer", "all-to-all experts"])
def test_what_is_by_hand_trains_as_the_program(case: str) -> None:
    row = contest(case, CASES[case].models[0], "fp32", SMALL, 0)
    assert row.losses[0] == pytest.approx(row.losses[1], abs=1e-4)
    assert row.saved[0] <= row.saved[1]


def side(calls: int, saved: int, seconds: tuple[float, ...]) -> Side:
    return Side((1.0,), Counted(Counter(add=calls), Counter(send=2), 8, saved), seconds)


def test_ratios_are_of_all_ranks_round_by_round() -> None:
    ours = (side(10, 100, (1.0, 2.0, 2.0)), side(20, 50, (1.0, 2.0, 4.0)))
    theirs = (side(10, 50, (1.0, 1.0, 1.0)), side(10, 90, (1.0, 1.0, 1.0)))
    row = Row("by hand", "Llama", "fp32", ours, theirs)
    assert row.ratios == (1.0, 2.0, 3.0)
    assert (row.calls, row.saved, row.collectives, row.wire_bytes) == ((30, 20), (100, 90), (4, 4), (16, 16))
    assert pairs_table([row])[-1] == "| by hand | Llama | fp32 | 2.00 | 1.00–3.00 | 1.50 | 1.11 | 4 : 4 | 16 : 16 |"
    seconds, calls, saved = above([row])
    assert seconds == "- CPU seconds: 0 of 1 pairs"
    assert calls.startswith("- operator calls: 1 of 1") and saved.startswith("- saved bytes: 1 of 1")
