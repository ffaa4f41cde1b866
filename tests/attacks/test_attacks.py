"""Nothing is silently other than on one device, nothing is lost, and no attack ends in a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.attacks.__main__ import outcome
from tests.attacks.attack import Attack, Pools
from tests.attacks.catalog import ATTACKS


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with contextlib.ExitStack() as stack:
        yield Pools(stack, {})


def cases() -> list:
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(attack, id=f"{attack.item}: {attack.name}", marks=marks[attack.slow]) for attack in ATTACKS]


@pytest.mark.parametrize("attack", cases())
def test_an_attack_is_refused_or_does_no_harm(attack: Attack, pools: Pools) -> None:
    kind, seen = outcome(attack, pools)
    assert kind == "passed", f"{kind}: {seen}; it guards against: {attack.guards}"


def test_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
