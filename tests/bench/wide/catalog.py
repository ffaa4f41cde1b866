"""Every model of the wide table, by name."""

from __future__ import annotations

from tests.bench.wide import adapters, diffusion, graphs, images, images_timm, language, plain, several, sound
from tests.bench.wide.model import Brought

PARTS = (plain, images_timm, diffusion, images, sound, several, language, adapters, graphs)
MODELS: dict[str, Brought] = {one.name: one for part in PARTS for one in part.MODELS}
