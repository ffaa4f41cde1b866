"""What attacks on checkpoints are written with: a program on two ranks, saved and loaded."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from autoplan.errors import AutoplanError
from autoplan.options import Training
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, clear, contents, unharmed
from tests.corruptions.checkpoint import CheckpointReader
from tests.fixtures import tiny_program as tiny

RANKS = 2
TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)


def new_program(training: Training = TRAINING) -> Program:
    program = Program(tiny.spec(dp=RANKS, zero=3, training=training), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    return program


def train(program: Program, steps: int = 1) -> None:
    for batch in tiny.batches(steps):
        program.step(batch)
        program.optimizer.step()


def caught(act: Callable[[], object]) -> AutoplanError | None:
    try:
        act()
    except AutoplanError as error:
        return error
    return None


def save(rank: int, world: int, folder: str, steps: int = 1, training: Training = TRAINING) -> AutoplanError | None:
    """A few steps, then a checkpoint; what was refused."""
    with new_program(training) as program:
        train(program, steps)
        return caught(lambda: program.save_checkpoint(folder, extra={"position": 7}))


def load(rank: int, world: int, folder: str, training: Training = TRAINING) -> tuple[AutoplanError | None, bool, str]:
    """What was refused, whether memory is as it was, and what was said on stderr."""
    said = io.StringIO()
    with new_program(training) as program, contextlib.redirect_stderr(said):
        before = CheckpointReader(program).memory()
        error = caught(lambda: program.load_checkpoint(folder))
        return error, CheckpointReader(program).memory() == before, said.getvalue()


def saved(place: Place, steps: int = 1, training: Training = TRAINING) -> Path:
    folder = place.folder / "step-1"
    told = place.pools.of(RANKS).run(save, str(folder), steps, training)
    assert told == [None] * RANKS, told
    return folder


def save_refused(place: Place, folder: Path, *words: str) -> str:
    """The error's text, where every rank refuses and no file is touched."""
    before = contents(place.folder)
    told = place.pools.of(RANKS).run(save, str(folder))
    unharmed(before, place.folder)
    if None in told:
        raise Silent("it was saved")
    return clear(told[0], words)


def load_refused(place: Place, folder: Path, *words: str, training: Training = TRAINING) -> str:
    """The same of a load, where nothing in memory has changed."""
    told = place.pools.of(RANKS).run(load, str(folder), training)
    for error, kept, _ in told:
        if error is None:
            raise Silent("it was loaded")
        if not kept:
            raise Lost(f"memory changed before the error: {error}")
    return clear(told[0][0], words)


def flip(file: Path, place: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def of(name: str, guards: str, run: Callable[[Place], str]) -> Attack:
    return Attack("checkpoint", name, guards, run)
