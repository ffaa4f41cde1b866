"""What is written with torch alone: the models of tests/support."""

from __future__ import annotations

from tests.bench.wide.model import Brought
from tests.support import brought
from tests.support import brought_buffers as _buffers  # noqa: F401  adds its models
from tests.support import brought_masks as _masks  # noqa: F401  adds its models
from tests.support import brought_parts as _parts  # noqa: F401  likewise

MODELS = tuple(Brought(f"torch {name}", "PyTorch", make) for name, make in brought.MODELS.items())
