"""A DLRM (Naumov et al. 2019, arXiv:1906.00091) on synthetic clicks: tables of ten rows to a million.

    python examples/dlrm.py [--cluster-spec "1x4 cpu"] [--rows 1000000] [--batch 1024] [--export out/dlrm]

Dense features go through a bottom MLP, each categorical one through a table of its own; what all of them give is
multiplied pair by pair, and a top MLP says how likely a click is. The dense layers are data parallel, while tables lie
on the devices as is cheapest: whole, by rows, by columns or replicated. The report shows each one's place.

Tables larger than the devices lie in the host's memory, behind a cache of their rows. That takes an optimizer that
touches looked-up rows alone, and segments that aren't compiled:

    python examples/dlrm.py --optimizer rowwise-adagrad --parallelism "tensor_system=table-parallel tables=host"

    autoplan plan --model examples/dlrm.py:make_model --cluster-spec "1x8 h100-sxm" --parallelism table-parallel
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

import autoplan

DENSE, LONG = 13, 4  # dense features; indices in each bag
ROWS, WIDTH, BATCH = 1_000_000, 16, 1024

Batch = dict[str, torch.Tensor]


def perceptron(sizes: Sequence[int], last: bool) -> nn.Sequential:
    """Linear layers with a relu behind each; ``last``: behind the last one, too."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


class DLRM(nn.Module):
    """dense [b, 13], sparse [b, tables, 4], clicks [b] -> the binary cross-entropy of the clicks."""

    def __init__(self, tables: Sequence[int], width: int, hidden: int) -> None:
        super().__init__()
        self.bottom = perceptron((DENSE, hidden, width), last=True)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in tables)
        count = len(tables) + 1
        self.top = perceptron((width + count * (count - 1) // 2, hidden, hidden, 1), last=False)
        first, second = torch.tril_indices(count, count, -1)
        self.register_buffer("pairs", first * count + second, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        scores = self.top(torch.cat([x, products], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, clicks)


def table_sizes(rows: int) -> list[int]:
    """From ten to ``rows``, two for each power of ten."""
    sizes, size = [], 10
    while size < rows:
        sizes += [size, 3 * size]
        size *= 10
    return [*(s for s in sizes if s < rows), rows]


def clicks_of(sizes: Sequence[int], batch: int, seed: int = 0) -> Batch:
    """Synthetic clicks: features at random, few indices often and many seldom; a click where what they stand for, by a
    hidden rule, is positive."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(batch, DENSE, generator=generator)
    skewed = torch.rand(batch, len(sizes), LONG, generator=generator) ** 3
    sparse = (skewed * torch.tensor(sizes).view(1, -1, 1)).long()
    tastes = torch.sin(sparse.double() * 0.7).sum((1, 2))
    clicks = (tastes + dense.sum(1) + torch.randn(batch, generator=generator) > 0).float()
    return {"dense": dense, "sparse": sparse, "clicks": clicks}


def make_model(rows: int = ROWS, width: int = WIDTH, hidden: int = 64, batch: int = BATCH) -> DLRM:
    sizes = table_sizes(rows)
    model = DLRM(sizes, width, hidden)
    model.example_inputs = {  # type: ignore[assignment]  # a mapping is no submodule
        "dense": torch.empty(batch, DENSE, device="meta"),
        "sparse": torch.empty(batch, len(sizes), LONG, dtype=torch.int64, device="meta"),
        "clicks": torch.empty(batch, device="meta"),
    }
    return model


def main(arguments: Sequence[str] | None = None) -> autoplan.Plan:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster-spec", default="1x4 cpu")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the largest table")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--parallelism", default="table-parallel")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--export", default="out/dlrm")
    options = parser.parse_args(arguments)
    model = make_model(options.rows, options.width)
    batch = clicks_of(table_sizes(options.rows), options.batch)
    how = autoplan.Training(optimizer=options.optimizer, compile=options.optimizer == "adamw")
    plan = autoplan.parallelize(model, options.cluster_spec, batch, parallelism=options.parallelism, training=how)
    print(plan.report(verbose=True))
    print(plan.verify())
    plan.export(options.export)
    print(f"torchrun --nproc-per-node {plan.record.cluster.devices} {options.export}/train.py")
    return plan


if __name__ == "__main__":
    main()
