"""Experts split over the ranks by hand: each choice of a token travels by all-to-all to its expert's rank and back; the
other parameters are alike on all ranks, their gradients summed once a step in one bucket.

Grouped products are none of those that autocast casts for, so under it tokens and weights are cast by hand: they travel
and are multiplied in the dtype that linear layers compute in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from tests.bench.pairs.byhand.parts import adamw, computing, rows_of
from tests.bench.pairs.measured import Step


class AllToAll(Function):
    """Rows sent to the ranks, so many to each; backward the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        return exchanged(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return exchanged(gradient, ctx.received, ctx.sent), None, None


def exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived


class Experts(nn.Module):
    """This rank's experts, in place of all of them."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.ranks, rank = dist.get_world_size(), dist.get_rank()
        self.here = experts.num_experts // self.ranks
        mine = slice(rank * self.here, (rank + 1) * self.here)
        self.gate_up = nn.Parameter(experts.gate_up_proj.detach()[mine].clone())
        self.down = nn.Parameter(experts.down_proj.detach()[mine].clone())

    def forward(self, given: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else given.dtype
        hidden, gate_up, down = (x.to(dtype) for x in (given, self.gate_up, self.down))
        choices = index.shape[1]
        expert, order = index.flatten().sort(stable=True)
        counts = torch.bincount(expert, minlength=self.here * self.ranks)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = arriving.view(self.ranks, -1).sum(1).tolist()
        rows = AllToAll.apply(hidden[order // choices], sent, received)
        local = torch.arange(self.here).repeat(self.ranks).repeat_interleave(arriving)
        local, by_expert = local.sort(stable=True)
        ends = torch.bincount(local, minlength=self.here).cumsum(0).to(torch.int32)
        gate, up = F.grouped_mm(rows[by_expert], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        rows = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
        back = AllToAll.apply(torch.empty_like(rows).index_copy(0, by_expert, rows), received, sent)
        apart = torch.empty_like(back).index_copy(0, order, back).view(*index.shape, -1)
        return (apart * scores.unsqueeze(-1)).sum(1).to(given.dtype)


def mixtral(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    for layer in module.base_model.layers:
        layer.mlp.experts = Experts(layer.mlp.experts)
    microbatches = rows_of(batch, dist.get_rank(), dist.get_world_size(), count)
    split = {p for m in module.modules() if isinstance(m, Experts) for p in m.parameters()}
    alike = [p for p in module.parameters() if p not in split]
    optimizer, size = adamw(module.parameters()), dist.get_world_size()

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for microbatch in microbatches:
            with computing(precision):
                loss = module(**microbatch).loss / (count * size)
            loss.backward()
            total.append(loss.detach() * size)
        gradients = [p.grad for p in alike]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(summed)
        optimizer.step()
        return sum(total[1:], total[0])

    given = [x for microbatch in microbatches for x in microbatch.values()]
    return Step(run, lambda: [*module.parameters(), *module.buffers(), *given])
