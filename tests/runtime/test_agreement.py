"""Ranks that disagree are told of it, all of them, before a gradient changes: who, and in what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from autoplan.errors import AutoplanError, InputsError
from autoplan.runtime.agreement.agreement import Agreement, Call
from autoplan.runtime.agreement.fingerprint import WORDS, Fingerprint
from autoplan.runtime.data.microbatches import given_batch
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.disagreements import (
    PLANS,
    agreeing,
    another_step,
    behind,
    half_of_the_ranks,
    mixed,
    mixed_inputs,
    one_rank_s_shape,
    one_rank_s_type,
    other_labels,
    peers_apart,
    said_whole,
    saved_apart,
    short,
    shuffled,
    some_accumulate,
    some_dropped,
    three,
)

CASES: list[tuple[Callable[[Program, int], object], str, tuple[str, ...]]] = [
    (behind, "dp2 tp2", ("tokens of step 1 differs between ranks 0-2 and rank 3", "a batch behind")),
    (behind, "zero3", ("differs between ranks 0-2 and rank 3",)),
    (behind, "pp2 dp2", ("differs between ranks 0-2 and rank 3",)),
    (shuffled, "zero3", ("tokens of step 1 differs between ranks 0-1, 3 and rank 2", "shuffle by itself")),
    (other_labels, "dp2 tp2", ("labels of step 1 differs between ranks 0, 2-3 and rank 1",)),
    (peers_apart, "dp2 tp2", ("tokens of step 1 differs between rank 0 and rank 1", "data rank 0 together")),
    (peers_apart, "pp2 dp2", ("differs between rank 1 and rank 3", "data rank 1 together")),
    (short, "dp2 tp2", ("the same 4 rows on ranks 0-3", "own rows of 2 data ranks", "rows='own'")),
    (short, "zero3", ("the same 2 rows on ranks 0-3", "a short last batch")),
    (half_of_the_ranks, "zero3", ("the same 2 rows on ranks 0, 2 and on ranks 1, 3", "a sampler")),
    (mixed, "dp2 tp2", ("the whole batch of 8 rows on ranks 0-1, 4 rows of its own on ranks 2-3", "counted twice")),
    (mixed_inputs, "dp2 tp2", ("labels of shape (4, 3): it is one data rank's rows, and tokens is the whole batch",)),
    (one_rank_s_shape, "zero3", ("tokens of shape (5, 3): the plan is for a batch of (8, 3)",)),
    (one_rank_s_type, "pp2 dp2", ("a batch of ['tokens']",)),
    (another_step, "dp2 tp2", ("step 2 on ranks 0, 2-3, step 1 on rank 1", "different numbers of optimizer steps")),
    (some_accumulate, "zero3", ("program.step on ranks 1-3, program.step(accumulate=True) on rank 0",)),
    (some_dropped, "dp2 tp2", ("gradients of 1 batches on ranks 0-1, 3, gradients of 0 batches on rank 2",)),
    (saved_apart, "zero3", ("save_weights on ranks 0-1, program.save_weights(trained_only=True) on ranks 2-3",)),
    (said_whole, "dp2 tp2", ("tokens of shape (4, 3): it is one data rank's rows, and rows='whole' was said",)),
]


def told(rank: int, world: int, jobs: list[tuple]) -> list[tuple[str, bool]]:
    """Of each job the error, and whether gradients and parameters are what they were."""
    found = []
    for plan, disagree in jobs:
        spec = tiny.spec(**PLANS[plan])
        with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
            program.load_weights(tiny.reference().state_dict())
            program.step(three()[2])
            program.optimizer.step()
            program.optimizer.zero_grad()
            program.steps = 0
            before = dict(program.full_state_dict())
            try:
                disagree(program, rank)
                text = ""
            except AutoplanError as error:
                assert isinstance(error, InputsError)
                text = str(error)
            after, left = dict(program.full_state_dict()), any(h.gradient is not None for h in program.held)
            same = all(torch.equal(before[name], after[name]) for name in before)
            found.append((text, same and (not left or disagree in (another_step, some_dropped))))
    return found


@pytest.fixture(scope="module")
def said(pool: RankPool) -> Mapping[tuple[str, str], list[tuple[str, bool]]]:
    jobs = [(plan, disagree) for disagree, plan, _ in CASES]
    ranks = pool.run(told, jobs)
    return {(disagree.__name__, plan): [r[i] for r in ranks] for i, (plan, disagree) in enumerate(jobs)}


@pytest.mark.parametrize(("disagree", "plan", "words"), CASES, ids=lambda x: getattr(x, "__name__", str(x)[:20]))
def test_every_rank_is_told_and_nothing_has_changed(said: Mapping, disagree: Callable, plan: str, words: tuple) -> None:
    for text, unchanged in said[disagree.__name__, plan]:
        for word in words:
            assert word in text
        assert unchanged


def test_one_rank_s_mistake_is_named_on_the_others(said: Mapping) -> None:
    texts = [text for text, _ in said["one_rank_s_shape", "zero3"]]
    assert texts[1].startswith("tokens of shape (5, 3)")
    assert all(texts[rank].startswith("the batch of rank 1: tokens of shape (5, 3)") for rank in (0, 2, 3))


def test_batches_that_belong_together_go_through(pool: RankPool) -> None:
    for whole, own, said_so, equal, expanded in pool.run(agreeing):
        assert whole == own == said_so
        assert equal == expanded


def asked_alone(rank: int, world: int) -> int:
    """How many collectives one question takes where all agree."""
    spec = tiny.spec(dp=2, tp=2)
    with Program(spec, tiny.program(1)) as program:
        agreement, calls = Agreement(program.axes, program.device), []
        reduce, gather = torch.distributed.all_reduce, torch.distributed.all_gather_object
        torch.distributed.all_reduce = lambda *a, **k: (calls.append("reduce"), reduce(*a, **k))[1]
        torch.distributed.all_gather_object = lambda *a, **k: (calls.append("gather"), gather(*a, **k))[1]
        try:
            agreement.on(Call("step", 0), lambda: given_batch(spec, three()[0], program.device))
        finally:
            torch.distributed.all_reduce, torch.distributed.all_gather_object = reduce, gather
        return calls.count("reduce") + 10 * calls.count("gather")


def test_agreeing_takes_one_all_reduce(pool: RankPool) -> None:
    assert pool.run(asked_alone) == [1] * 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int8])
def test_a_fingerprint_sees_every_element_and_its_place(dtype: torch.dtype) -> None:
    of = Fingerprint(torch.device("cpu")).of
    x = (torch.arange(3 * WORDS + 17) % 2).to(dtype)
    first = of([x])
    assert 0 <= int(first) < 1 << 62 and first == of([x.clone()])
    for place in (0, 1, WORDS - 1, WORDS, 3 * WORDS + 16):
        other = x.clone()
        other[place] = 1 - other[place].int() if dtype == torch.bool else 1 - other[place]
        assert of([other]) != first
    rows = x[: 3 * WORDS].view(3, WORDS)
    assert of([rows]) == of([x[: 3 * WORDS]]) != of([rows.roll(1, 1)])


def test_fingerprints_of_neighbours_differ() -> None:
    """Sign flips, swapped rows, shifted batches: 4,000 tensors without a collision."""
    of = Fingerprint(torch.device("cpu")).of
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, generator=generator)
    signs = [torch.where(torch.arange(128).view(8, 16) < place, -x, x) for place in range(128)]
    swaps = [x[torch.randperm(8, generator=generator)] for _ in range(50)]
    shifts = [torch.full((8, 16), float(value)) for value in range(3000)]
    distinct = {tuple(t.flatten().tolist()) for t in (*signs, *swaps, *shifts)}
    assert len({int(of([t])) for t in (*signs, *swaps, *shifts)}) == len(distinct)
    assert of([x, -x]) != of([-x, x])
