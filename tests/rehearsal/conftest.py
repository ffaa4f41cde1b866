"""Rehearsals of these tests share an interpreter. What the README shows has one of its own, as users' have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from autoplan.rehearsal import rehearse
from autoplan.rehearsal.rehearse import Asked
from tests.support.rehearsing import Apart, rehearsing


@pytest.fixture(scope="package", autouse=True)
def one_interpreter() -> Iterator[None]:
    """Started when a rehearsal first needs it."""
    started: list[Apart] = []
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:

        def apart(asked: Sequence[Asked]) -> list:
            if not started:
                started.append(stack.enter_context(rehearsing()))
            return started[0](asked)

        patched.setattr(rehearse, "each_apart", apart)
        yield
