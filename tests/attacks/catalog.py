"""All attacks, in the order of the table."""

from __future__ import annotations

from tests.attacks import (
    checkpoint,
    checkpoint_damage,
    checkpoint_state,
    errors,
    files,
    forward,
    inference,
    initialisation,
    loop,
    model,
    model_forward,
    model_values,
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
    *model_forward.ATTACKS,
    *model_values.ATTACKS,
    *ranks.ATTACKS,
    *loop.ATTACKS,
    *forward.ATTACKS,
    *checkpoint.ATTACKS,
    *checkpoint_damage.ATTACKS,
    *checkpoint_state.ATTACKS,
    *weights.ATTACKS,
    *saving.ATTACKS,
    *files.ATTACKS,
    *inference.ATTACKS,
    *errors.ATTACKS,
    *review_training.ATTACKS,
    *review_files.ATTACKS,
)
