"""Sweeps over many cases, of which a quick run takes a few and ``make test-all`` every one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings


def sampled(cases: Iterable[object], quick: Iterable[object]) -> list:
    """The cases as a test's parameters, all but those of ``quick`` marked slow.

    A tuple holds the values of several arguments. AssertionError where ``quick`` names a case that there isn't.
    """
    cases, quick = list(cases), list(quick)
    unknown = [case for case in quick if case not in cases]
    assert quick and not unknown, f"{unknown} is no case"
    return [case if case in quick else slow(case) for case in cases]


def examples(count: int) -> settings:
    """A property's examples: so many where the slow tests run too, of ``make test`` the share that other properties
    have."""
    return settings(max_examples=count * settings().max_examples // 100, deadline=None)


def slow(case: object) -> object:
    """The case, for ``make test-all`` alone."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
