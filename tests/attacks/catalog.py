"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import errors
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (*errors.ATTACKS,)
