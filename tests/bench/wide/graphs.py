"""PyTorch Geometric: networks over graphs whose edges come with the batch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench.wide.model import Brought, Made, noisy

NODES, EDGES, WIDTH, CLASSES = 24, 60, 16, 4


class OverEdges(nn.Module):
    """Two layers of one kind over the same edges."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(WIDTH, 2 * WIDTH), layer(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def edges() -> Tensor:
    """No edge from a node to itself."""
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(0, NODES, (EDGES,), generator=generator)
    return torch.stack([source, (source + torch.randint(1, NODES, (EDGES,), generator=generator)) % NODES])


def network(name: str, kind: str, **options: object) -> Brought:
    def make() -> Made:
        layer = getattr(importlib.import_module("torch_geometric.nn"), kind)

        def made(inner: int, out: int) -> nn.Module:
            if kind == "GINConv":
                return layer(nn.Sequential(nn.Linear(inner, out), nn.ReLU(), nn.Linear(out, out)))
            return layer(inner, out, **options)

        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(NODES, WIDTH, generator=generator), torch.randint(0, CLASSES, (NODES,), generator=generator)
        return noisy(OverEdges(made)), (x, edges(), y), F.cross_entropy

    return Brought(f"pyg {name}", "PyG", make)


KINDS = (
    network("gcn", "GCNConv"),
    network("gcn without loops", "GCNConv", add_self_loops=False),
    network("gat", "GATConv"),
    network("gat v2", "GATv2Conv"),
    network("gat without loops", "GATConv", add_self_loops=False),
    network("sage", "SAGEConv"),
    network("sage max", "SAGEConv", aggr="max"),
    network("gin", "GINConv"),
    network("graph", "GraphConv"),
    network("tag", "TAGConv", K=2),
    network("sgc", "SGConv", K=2),
    network("cheb", "ChebConv", K=2),
    network("transformer", "TransformerConv", heads=1),
    network("leconv", "LEConv"),
    network("arma", "ARMAConv"),
    network("resgated", "ResGatedGraphConv"),
)
MODELS = KINDS if importlib.util.find_spec("torch_geometric") else ()
