"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import (
    checkpoint,
    errors,
    files,
    forward,
    inference,
    initialisation,
    loop,
    model,
    ranks,
    review_files,
    review_training,
    saving,
    weights,
)
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *initialisation.ATTACKS,
    *model.ATTACKS,
    *ranks.ATTACKS,
    *loop.ATTACKS,
    *forward.ATTACKS,
    *checkpoint.ATTACKS,
    *weights.ATTACKS,
    *saving.ATTACKS,
    *files.ATTACKS,
    *inference.ATTACKS,
    *errors.ATTACKS,
    *review_training.ATTACKS,
    *review_files.ATTACKS,
)
