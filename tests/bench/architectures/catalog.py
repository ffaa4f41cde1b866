"""Every architecture by name: first those that the acceptance names, then the further ones."""

from __future__ import annotations

from tests.bench.architectures import (
    decoders,
    decoders_further,
    decoders_recent,
    encoders,
    encoders_further,
    others,
    speech,
    state_space,
    vision,
)
from tests.bench.architectures.architecture import Architecture

LISTED = (*decoders.LISTED, *encoders.LISTED, *others.LISTED)
FURTHER = (
    *decoders_further.FURTHER,
    *decoders_recent.FURTHER,
    *encoders.FURTHER,
    *encoders_further.FURTHER,
    *vision.FURTHER,
    *speech.FURTHER,
    *state_space.FURTHER,
)
ALL = (*LISTED, *FURTHER)
ARCHITECTURES: dict[str, Architecture] = {one.name: one for one in ALL}
