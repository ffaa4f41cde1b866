"""From a layout on one mesh to a layout on another: what a pipeline's stages hand on."""

from __future__ import annotations

from autoplan.redistribution.meshes.legs import STRATEGIES, Leg, Transfer, transfer
from autoplan.redistribution.meshes.sides import MeshLinks, Side

__all__ = ["STRATEGIES", "Leg", "MeshLinks", "Side", "Transfer", "transfer"]
