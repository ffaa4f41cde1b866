"""Compiled segments: one graph for each distinct block, its collectives inside."""

from collections.abc import Sequence

import torch
from torch import nn
from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration

from autoplan.runtime.parallel.seeding import seeded
from autoplan.runtime.parallel.zero import segments_of
from autoplan.runtime.program_spec import ProgramSpec

UNCOMPILED = "cpu"  # where a compilation outlasts what it saves; cost_models' profile says the same (compiles = 0)
NOT_COMPILED = (
    "torch.compile has no kernels for {} here: segments run eagerly, slower than predicted. Training(compile=False) "
    "prices that"
)


def compile_as_asked(spec: ProgramSpec, stages: Sequence[nn.Module], device_type: str) -> str:
    """Compiles a program's segments where its plan says so; what is to be told where torch can't, else ""."""
    if not spec.training.compile or device_type == UNCOMPILED:
        return ""
    if not has_compiler(device_type):
        return NOT_COMPILED.format(device_type)
    compile_segments(stages)
    return ""


def has_compiler(device_type: str) -> bool:
    """Whether inductor makes kernels for a kind of device, of which torch says so in no public place."""
    init_backend_registration()
    return get_scheduling_for_device(device_type) is not None


def compile_segments(stages: Sequence[nn.Module], backend: str = "inductor") -> None:
    """Compiles the forward of every segment, whole: a graph break is an error.

    The forward, not the module: hooks that gather parameters and reduce gradients (fully_shard) stay outside.
    """
    for stage in stages:
        for segment in segments_of(next(stage.children())):
            compiled = torch.compile(segment.forward, fullgraph=True, dynamic=False, backend=backend)
            segment.forward = seeded(segment, compiled)
