"""Compiled segments: one graph for each distinct block, its collectives inside."""

from collections.abc import Sequence

import torch
from torch import nn

from autoplan.runtime.parallel.seeding import seeded
from autoplan.runtime.parallel.zero import segments_of

UNCOMPILED = "cpu"  # where a compilation outlasts what it saves; cost_models' profile says the same (compiles = 0)


def compile_segments(stages: Sequence[nn.Module], backend: str = "inductor") -> None:
    """Compiles the forward of every segment, whole: a graph break is an error.

    The forward, not the module: hooks that gather parameters and reduce gradients (fully_shard) stay outside.
    """
    for stage in stages:
        for segment in segments_of(next(stage.children())):
            compiled = torch.compile(segment.forward, fullgraph=True, dynamic=False, backend=backend)
            segment.forward = seeded(segment, compiled)
