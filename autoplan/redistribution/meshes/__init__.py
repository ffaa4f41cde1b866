"""From a layout on one mesh to a layout on another: what pipeline stages hand on.

Order: `crossing` (messages between meshes), `sides` (a tensor on one of the meshes), `legs` (the whole way).
"""

from __future__ import annotations

from autoplan.redistribution.meshes.legs import STRATEGIES, Leg, Transfer, transfer
from autoplan.redistribution.meshes.sides import MeshLinks, Side

__all__ = ["STRATEGIES", "Leg", "MeshLinks", "Side", "Transfer", "transfer"]
