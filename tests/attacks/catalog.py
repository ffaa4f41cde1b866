"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import checkpoint, files, forward, inference, initialisation, loop, model, ranks, weights
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *initialisation.ATTACKS,
    *model.ATTACKS,
    *ranks.ATTACKS,
    *loop.ATTACKS,
    *checkpoint.ATTACKS,
    *weights.ATTACKS,
    *files.ATTACKS,
    *forward.ATTACKS,
    *inference.ATTACKS,
)
