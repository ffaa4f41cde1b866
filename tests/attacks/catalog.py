"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import forward
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *forward.ATTACKS,
)
