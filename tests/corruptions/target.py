"""What is damaged, how it is read, and what one reading comes to."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoplan.errors import AutoplanError
from tests.corruptions.damage import TRACE, damage

OUTCOMES = ("refused", "harmless", "unnoticed", "changed", "traceback", "code ran")
RIGHT = ("refused", "harmless")


class Reader(Protocol):
    """What reads one kind of folder in this process, again and again."""

    def disturb(self) -> None:
        """Gives what is in memory other values than the folder's: a load that does nothing is seen."""

    def load(self, folder: Path) -> None:
        """Reads the folder as a user does; an AutoplanError where it refuses."""

    def memory(self) -> object:
        """All that a load may change, to be compared by ==: hashes, bytes, numbers."""


@dataclass(frozen=True)
class Target:
    """One kind of folder.

    name    as the command line has it
    make    writes a whole folder at a path that isn't there yet
    reader  once for all cases
    """

    name: str

    def make(self, folder: Path) -> None:
        raise NotImplementedError

    def reader(self) -> AbstractContextManager[Reader]:
        raise NotImplementedError


@dataclass(frozen=True)
class Case:
    """One damaged folder: what was done to it, what reading it came to, and what was said."""

    done: str
    outcome: str
    said: str = ""


def cases(target: Target, times: int, seed: int, place: Path) -> Iterator[Case]:
    """So many damaged copies of a target's folder, each read once. ``place``: an empty folder."""
    chance, whole = random.Random(f"{target.name} {seed}"), place / "whole" / target.name
    whole.parent.mkdir(parents=True)
    target.make(whole)
    with target.reader() as reader:
        reader.load(whole)
        wanted = reader.memory()
        for number in range(times):
            copy = place / f"case-{number}" / target.name
            shutil.copytree(whole, copy)
            done = damage(copy, chance)
            outcome, said = read_once(reader, copy, wanted)
            ran = (copy.parent / TRACE).exists()
            yield Case(done, "code ran" if ran else outcome, said)
            shutil.rmtree(copy.parent)


def read_once(reader: Reader, folder: Path, wanted: object) -> tuple[str, str]:
    """The outcome of one load, and what was said."""
    reader.disturb()
    before = reader.memory()
    try:
        reader.load(folder)
    except AutoplanError as error:
        return ("refused" if reader.memory() == before else "changed"), str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return ("harmless" if reader.memory() == wanted else "unnoticed"), ""
