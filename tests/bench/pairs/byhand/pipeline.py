"""``torch.distributed.pipelining``: the module cut by hand, one stage or several a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from tests.bench.pairs.byhand.parts import adamw, computing, next_token_loss, shifted
from tests.bench.pairs.measured import Step


class Cut(nn.Module):
    """Some of a causal model's layers: the first cut embeds, the last one has the norm and the head."""

    def __init__(self, module: nn.Module, layers: range, first: bool, last: bool, precision: str) -> None:
        super().__init__()
        inner, self.precision = module.base_model, precision
        blocks = inner.layers if hasattr(inner, "layers") else inner.h
        self.layers = nn.ModuleList(blocks[i] for i in layers)
        self.rotary = getattr(inner, "rotary_emb", None)
        self.embedding = module.get_input_embeddings() if first else None
        self.positions = getattr(inner, "wpe", None) if first else None
        self.drop = getattr(inner, "drop", None) if first else None
        self.norm = (inner.norm if hasattr(inner, "norm") else inner.ln_f) if last else None
        self.head = module.lm_head if last else None

    def forward(self, x: Tensor) -> Tensor:
        with computing(self.precision):
            places = torch.arange(x.shape[1]).unsqueeze(0)
            if self.embedding is not None:
                x = self.embedding(x)
            if self.positions is not None:
                x = x + self.positions(places)
            if self.drop is not None:
                x = self.drop(x)
            known = {} if self.rotary is None else {"position_embeddings": self.rotary(x, places)}
            for layer in self.layers:
                found = layer(x, **known)
                x = found[0] if isinstance(found, tuple) else found
            return x if self.head is None else self.head(self.norm(x))


def pipelined(
    module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int, layers: Sequence[int]
) -> Step:
    """layers  of each stage; stages go round the ranks"""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stops = list(accumulate(layers))
    end = len(layers) - 1
    cuts = [Cut(module, range(stops[n] - layers[n], stops[n]), n == 0, n == end, precision) for n in range(end + 1)]
    mine = [n for n in range(len(cuts)) if n % ranks == rank]
    stages = [PipelineStage(cuts[n], n, len(cuts), torch.device("cpu")) for n in mine]
    if len(cuts) == ranks:
        schedule = Schedule1F1B(stages[0], count, loss_fn=next_token_loss)
    else:
        schedule = ScheduleInterleaved1F1B(stages, count, loss_fn=next_token_loss)
    parameters = list(dict.fromkeys(p for n in mine for p in cuts[n].parameters()))
    tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
    optimizer = adamw(parameters)
    first, last = 0 in mine, end in mine

    def run() -> Tensor | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        given = (batch["input_ids"],) if first else ()
        if last:
            schedule.step(*given, target=shifted(batch["labels"]), losses=losses, return_outputs=False)
        else:
            schedule.step(*given, return_outputs=False)
        if tied:
            dist.all_reduce(module.get_input_embeddings().weight.grad)
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else None

    return Step(run, lambda: [*parameters, *module.buffers(), *batch.values()])
