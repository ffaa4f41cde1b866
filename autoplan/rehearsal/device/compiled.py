"""Compiled segments, kernel by kernel: what a compiled backward reads is what torch's partitioner keeps.

``torch.compile`` takes no dispatch mode beside it. So the steps that decide what is kept are run by themselves, by
torch's own functions: one graph of forward and backward for each class of segment, inductor's decompositions, and the
min-cut partition. A segment that recomputes selectively is traced through the same ``checkpoint`` that dynamo finds in
it (``runtime.memory.selective``): its policy tags the graph's nodes, and the partition obeys the tags. Both graphs
then run as the kernels that inductor makes of them (``rehearsal.device.fused_graph``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.pattern_matcher  # the partition imports it late; ranks are forks, each would anew
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from autoplan.rehearsal.device.call_recorder import Recorder
from autoplan.rehearsal.device.fused_graph import fused, kept_alone
from autoplan.rehearsal.device.graph_replay import graph_runner
from autoplan.runtime.memory import selective
from autoplan.runtime.parallel.zero import segments_of

TANGENTS = "tangents"  # how torch names those arguments of a backward graph that the forward hasn't kept


def partition_segments(stages: Sequence[nn.Module], recorder: Recorder | None = None) -> None:
    """As ``runtime.parallel.compiled.compile_segments``, one graph for each class of segment.

    recorder  who is told of the runs; with one they are repeated
    """
    graphs: dict[object, Callable[..., Any]] = {}
    for stage in stages:
        for segment in segments_of(next(stage.children())):
            segment.forward = _partitioned(segment, graphs, recorder)


def _partitioned(
    segment: nn.Module, graphs: dict[object, Callable[..., Any]], recorder: Recorder | None
) -> Callable[..., Any]:
    names = [name for name, _ in segment.named_parameters(remove_duplicate=False)]
    plain, own = segment.forward, "forward" in vars(segment)  # its class's, or one that recomputes selectively

    def forward(*args: Any) -> Any:
        values = [dict(segment.named_parameters(remove_duplicate=False))[name] for name in names]
        given = (*values, *args)
        key = (type(segment), own, torch.is_grad_enabled(), tuple(_described(x) for x in given))
        if key not in graphs:
            graphs[key] = _graph(segment, plain, names, recorder)
            # its first call traces, which no other mode may see; nor may a checkpoint around it see what that saves
            with _disable_current_modes(), saved_tensors_hooks(_same, _same), _as_compiled():
                graphs[key](*(_alone(x) for x in given))
        return graphs[key](*given)

    return forward


def _graph(
    segment: nn.Module, plain: Callable[..., Any], names: Sequence[str], recorder: Recorder | None
) -> Callable[..., Any]:
    def flat(*given: Any) -> Any:
        values = dict(zip(names, given, strict=False))
        with_values = _Bare(segment, plain)
        return functional_call(with_values, {f"segment.{n}": v for n, v in values.items()}, given[len(names) :])

    forwards: list[fx.GraphModule] = []

    def forward(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list], Any]:
        forwards.append(graph)
        return graph_runner(fused(graph), recorder)

    def backward(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list], Any]:
        given = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        kept = sum(not name.startswith(TANGENTS) for name in given)
        return graph_runner(fused(graph, kept_alone(forwards[-1], kept)), recorder)

    return aot_function(
        flat, fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip


class _Bare(nn.Module):
    """A segment without its hooks: fully_shard's stay outside of what is compiled."""

    def __init__(self, segment: nn.Module, plain: Callable[..., Any]) -> None:
        super().__init__()
        self.segment, self.plain = segment, plain

    def forward(self, *args: Any) -> Any:
        return self.plain(*args)


@contextmanager
def _as_compiled() -> Iterator[None]:
    """Within it a program sees what it sees while dynamo traces it."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.compiler, "is_compiling", lambda: True))
        stack.enter_context(patch.object(selective, "checkpoint", _tagging))
        yield


def _tagging(function: Callable[..., Any], *args: Any, context_fn: Callable[[], tuple], **options: Any) -> Any:
    """A checkpoint in a compiled segment, as dynamo's operator for it runs it (``TagActivationCheckpoint``)."""

    def numbered() -> tuple:
        first, again = context_fn()
        first.ac_graph_id = 0  # of the segment's checkpoints, of which there is one
        return first, again

    with fx.traceback.preserve_node_meta():
        return checkpoint(function, *args, context_fn=numbered, early_stop=False, **options)


def _same(x: Tensor) -> Tensor:
    return x


def _described(x: Any) -> object:
    return (tuple(x.shape), x.dtype, x.requires_grad) if isinstance(x, Tensor) else x


def _alone(x: Any) -> Any:
    """An argument to trace with: on a storage of its own, for the graph holds on to it."""
    if not isinstance(x, Tensor):
        return x
    if not isinstance(x, FakeTensor):
        return x.detach().requires_grad_(x.requires_grad)
    with x.fake_mode:
        alike = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return alike.requires_grad_(x.requires_grad)
