"""Compiled segments: one graph for each distinct block, its collectives inside."""

from collections.abc import Sequence

import torch
from torch import nn
from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration

from autoplan.runtime.elastic.stderr_messages import note
from autoplan.runtime.parallel.seeding import seeded
from autoplan.runtime.parallel.zero import segments_of

UNCOMPILED = "cpu"  # where a compilation outlasts what it saves; cost_models' profile says the same (compiles = 0)


def has_compiler(device: torch.device, rank: int) -> bool:
    """Whether inductor makes kernels for a device, of which torch says so in no public place. Where it makes none, and
    the plan was priced with them, the first rank tells."""
    if device.type == UNCOMPILED:
        return False
    init_backend_registration()
    found = get_scheduling_for_device(device.type) is not None
    if not found and rank == 0:
        note(
            f"torch.compile has no kernels for {device.type} here: segments run eagerly, slower than predicted. "
            "Training(compile=False) prices that"
        )
    return found


def compile_segments(stages: Sequence[nn.Module], backend: str = "inductor") -> None:
    """Compiles the forward of every segment, whole: a graph break is an error.

    The forward, not the module: hooks that gather parameters and reduce gradients (fully_shard) stay outside.
    """
    for stage in stages:
        for segment in segments_of(next(stage.children())):
            compiled = torch.compile(segment.forward, fullgraph=True, dynamic=False, backend=backend)
            segment.forward = seeded(segment, compiled)
