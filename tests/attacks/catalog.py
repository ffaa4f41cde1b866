"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import checkpoint, files, saving, weights
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *checkpoint.ATTACKS,
    *weights.ATTACKS,
    *saving.ATTACKS,
    *files.ATTACKS,
)
