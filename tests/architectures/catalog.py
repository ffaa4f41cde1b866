"""Every architecture by name: first those that the acceptance names, then the further ones."""

from __future__ import annotations

from tests.architectures import decoders, encoders, others
from tests.architectures.architecture import Architecture

ALL = (*decoders.LISTED, *encoders.LISTED, *others.LISTED, *encoders.FURTHER)
ARCHITECTURES: dict[str, Architecture] = {one.name: one for one in ALL}
