"""Ranks that disagree: what scripts and loaders do on one rank and not on others."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autoplan.errors import AutoplanError
from autoplan.runtime.data.loader import Batches
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, equal
from tests.fixtures import tiny_program as tiny
from tests.support import disagreements as cases

Act = Callable[[Program, int], object]


def program_of(plan: str) -> Program:
    spec = tiny.spec(**cases.PLANS[plan])
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().state_dict())
    return program


def on_a_rank(rank: int, world: int, plan: str, act: Act) -> tuple[str, bool]:
    """(the error's text, whether this rank's parameters are what they were)"""
    with program_of(plan) as program:
        before = [h.values.clone() for h in program.held]
        try:
            act(program, rank)
        except AutoplanError as error:
            return str(error), all(map(torch.equal, before, [h.values for h in program.held]))
        return "", True


def told(plan: str, act: Act, *words: str) -> Callable[[Place], str]:
    """Every rank is told in these words, and none has changed anything."""

    def run(place: Place) -> str:
        results = place.pools.of(4).run(on_a_rank, plan, act, timeout_s=30)
        for rank, (text, unchanged) in enumerate(results):
            if not all(word in text for word in words) or not text:
                raise Silent(f"rank {rank} heard: {text!r}")
            if not unchanged:
                raise Lost(f"rank {rank} has other parameters")
        return str(results[0][0])

    return run


def all_told(name: str, guards: str, plan: str, act: Act, *words: str) -> Attack:
    return Attack("ranks", name, guards, told(plan, act, *words))


def short_last_batch(program: Program, rank: int) -> object:
    """A set whose last batch is short, in a script that leaves the loader's own drop_last out and takes no Batches."""
    for batch in (*cases.three()[:1], {name: value[:4] for name, value in cases.three()[1].items()}):
        program.step(batch)
        program.optimizer.zero_grad()
    return None


def half_a_peer(program: Program, rank: int) -> object:
    """One pipeline stage's loader has dropped the first row."""
    batch = cases.three()[0]
    rolled = {name: value.roll(1, 0) for name, value in batch.items()}
    return program.step(cases.share(program, rolled if rank == 2 else batch))


def extra_update(program: Program, rank: int) -> object:
    program.step(cases.three()[0])
    program.optimizer.step()
    if rank == 0:
        program.optimizer.step()  # "to be sure"
    return program.step(cases.three()[1])


def one_in_float(program: Program, rank: int) -> object:
    batch = cases.three()[0]
    return program.step({name: value.double() if rank == 3 else value for name, value in batch.items()})


def one_accepts_rows(program: Program, rank: int) -> object:
    return program.step(cases.share(program, cases.three()[0]), rows="own" if rank == 0 else None)


def nonsense_rows(program: Program, rank: int) -> object:
    return program.step(cases.three()[0], rows="mine")  # type: ignore[arg-type]


def loss_of_short(rank: int, world: int) -> tuple[float, str]:
    """The last loss of a set that ends within a batch, by the loader's helper."""
    with program_of("dp2 tp2") as program:
        batches = Batches(program.spec, [*cases.three(), {n: v[:4] for n, v in cases.three()[0].items()}])
        loss = 0.0
        for batch in batches:
            loss = program.step(batch).item()
            program.optimizer.zero_grad()
        return loss, batches.ended


def second_update(place: Place) -> str:
    found = [text for text, _ in place.pools.of(4).run(on_a_rank, "dp2 tp2", extra_update)]
    return equal(all("step 2 on ranks 1-3, step 3 on rank 0" in text for text in found), found[0])


def left_out(place: Place) -> str:
    model = tiny.reference()
    wanted = model(**cases.three()[2]).item()
    found = place.pools.of(4).run(loss_of_short)
    told = "batch 4 has 4 rows of 8, and was left out"
    right = all(abs(loss - wanted) < 1e-12 and told in said for loss, said in found)
    return equal(right, f"the short batch is left out, and told: {found[0]}")


def equal_rows(place: Place) -> str:
    found = place.pools.of(4).run(cases.agreeing)
    return equal(all(r[3] == r[4] for r in found), "equal rows of all data ranks, said to be their own")


BATCH, COUNTED = "a rank trains on another batch than the others", "rows are counted twice"
ATTACKS: tuple[Attack, ...] = (
    all_told("one batch behind, tp", BATCH, "dp2 tp2", cases.behind, "ranks 0-2 and rank 3", "a batch behind"),
    all_told("one batch behind, ZeRO-3", BATCH, "zero3", cases.behind, "ranks 0-2 and rank 3"),
    all_told("one batch behind, pipeline", BATCH, "pp2 dp2", cases.behind, "ranks 0-2 and rank 3"),
    all_told("a loader that shuffles by itself", BATCH, "zero3", cases.shuffled, "rank 2", "shuffle by itself"),
    all_told("one label of one rank differs", BATCH, "dp2 tp2", cases.other_labels, "labels of step 1", "rank 1"),
    all_told("tensor-parallel peers with other rows", BATCH, "dp2 tp2", cases.peers_apart, "rank 0 and rank 1"),
    all_told("pipeline peers with other rows", BATCH, "pp2 dp2", cases.peers_apart, "rank 1 and rank 3"),
    all_told("a pipeline stage whose rows are moved by one", BATCH, "pp2 dp2", half_a_peer, "rank 0 and rank 2"),
    all_told("a short batch as own rows, 2 data ranks", COUNTED, "dp2 tp2", cases.short, "the same 4 rows", "2 data"),
    all_told("a short batch as own rows, 4 data ranks", COUNTED, "zero3", cases.short, "the same 2 rows on ranks 0-3"),
    all_told("a short last batch after whole ones", COUNTED, "dp2 tp2", short_last_batch, "a short last batch"),
    all_told("a sampler that knows of half the ranks", COUNTED, "zero3", cases.half_of_the_ranks, "ranks 0, 2 and"),
    all_told("whole batches on some ranks, rows on others", COUNTED, "dp2 tp2", cases.mixed, "ranks 0-1", "ranks 2-3"),
    all_told("whole tokens with own labels", COUNTED, "dp2 tp2", cases.mixed_inputs, "labels of shape (4, 3)"),
    all_told("own rows that are said to be whole", COUNTED, "dp2 tp2", cases.said_whole, "rows='whole' was said"),
    all_told("rows='own' on one rank alone", COUNTED, "dp2 tp2", one_accepts_rows, "with rows='own' on rank 0"),
    all_told("rows='mine'", "a word that nobody knows is ignored", "zero3", nonsense_rows, "rows='mine'", "'own'"),
    all_told("a wrong shape on one rank", "the others wait for it", "zero3", cases.one_rank_s_shape, "(5, 3)"),
    all_told("a text for a tensor on one rank", "the others wait for it", "pp2 dp2", cases.one_rank_s_type, "tokens"),
    all_told("floats for ids on one rank", "the others wait for it", "dp2 tp2", one_in_float, "torch.float64"),
    all_told("a rank at another step", "its dropout and rate differ", "dp2 tp2", cases.another_step, "on rank 1"),
    Attack("ranks", "a second optimizer.step() on one rank", "its parameters differ from then on", second_update),
    all_told("accumulate=True on one rank", "gradients of other batches", "zero3", cases.some_accumulate, "on rank 0"),
    all_told("zero_grad on one rank", "gradients of other batches", "dp2 tp2", cases.some_dropped, "on rank 2"),
    Attack("ranks", "a set that ends within a batch, by Batches", COUNTED, left_out),
    Attack("ranks", "equal rows that are meant", "right batches are refused", equal_rows),
)
