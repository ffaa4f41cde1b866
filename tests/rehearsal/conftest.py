"""Rehearsals of these tests share an interpreter. What the README shows has one of its own, as users' have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from autoplan.rehearsal import rank_workers, rehearse
from autoplan.rehearsal.rehearse import Asked
from tests.support.rehearsing import Forks, rehearsing


@pytest.fixture(scope="package")
def forks() -> Iterator[Forks]:
    """Started when something first needs it."""
    started: list[Forks] = []
    with ExitStack() as stack:

        def forks(function: Callable[[Any], Any], asked: Sequence[Any]) -> list:
            if not started:
                started.append(stack.enter_context(rehearsing()))
            return started[0](function, asked)

        yield forks


@pytest.fixture(scope="package", autouse=True)
def one_interpreter(forks: Forks) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:

        def apart(asked: Sequence[Asked]) -> list:
            return forks(rank_workers.alone, asked)

        patched.setattr(rehearse, "each_apart", apart)
        yield
