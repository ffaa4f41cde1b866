"""What a rehearsed compiled segment keeps for its backward is what torch.compile keeps of the same segment."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from autoplan.rehearsal.device.compiled import partition_segments
from autoplan.runtime.memory.selective import recompute_selectively
from autoplan.runtime.parallel.zero import segments_of

WIDTH, INNER, ROWS = 8, 24, 6


class Segment(nn.Module):
    """A norm, a gated pair of products and a sum: results that are dear and cheap."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def stage_of(selective: bool) -> nn.Module:
    stage = nn.Sequential(nn.ModuleList([Segment(), Segment()]))
    if selective:
        recompute_selectively(segments_of(next(stage.children())))
    return stage


def kept(result: Tensor) -> Counter:
    """The tensors that a compiled function's node of autograd holds, by shape."""
    node = result.grad_fn
    assert node is not None
    return Counter(tuple(x.shape) for x in node.saved_tensors if x is not None)  # type: ignore[attr-defined]


def kept_by_torch(stage: nn.Module) -> list[Counter]:
    def as_it_is(graph: fx.GraphModule, inputs: Sequence[object]) -> Callable:
        return graph.forward

    backend = aot_autograd(
        fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip
    given = torch.ones(ROWS, WIDTH, requires_grad=True)
    segments = list(segments_of(next(stage.children())))
    return [kept(torch.compile(each.forward, fullgraph=True, backend=backend)(given)) for each in segments]


def kept_in_rehearsal(made: Callable[[], nn.Module]) -> list[Counter]:
    with FakeTensorMode():
        stage = made()
        partition_segments([stage])
        given = torch.ones(ROWS, WIDTH, requires_grad=True)
        return [kept(each(given)) for each in segments_of(next(stage.children()))]


@pytest.mark.parametrize("selective", [False, True], ids=["whole", "selective"])
def test_a_rehearsed_segment_keeps_what_a_compiled_one_keeps(selective: bool) -> None:
    rehearsed, real = kept_in_rehearsal(lambda: stage_of(selective)), kept_by_torch(stage_of(selective))
    assert rehearsed == real and rehearsed[0] == rehearsed[1]


def test_a_segment_that_recomputes_selectively_keeps_less_than_one_beside_it() -> None:
    """Two of a class in one stage, one of which drops what is cheap: their graphs are not shared."""

    def made() -> nn.Module:
        stage = stage_of(selective=False)
        recompute_selectively(list(segments_of(next(stage.children())))[1:])
        return stage

    whole, selective = kept_in_rehearsal(made)
    assert whole != selective


def test_nothing_of_a_run_is_held_after_it() -> None:
    """Neither what it was given, nor what the forward saved, nor the gradients that the backward gave."""
    with FakeTensorMode():
        stage = stage_of(selective=False)
        partition_segments([stage])
        segment = next(iter(segments_of(next(stage.children()))))
        for _ in range(2):
            given = torch.ones(ROWS, WIDTH, requires_grad=True)
            result = segment(given)
            saved = result.grad_fn.saved_tensors  # type: ignore[union-attr]
            own = {id(p.untyped_storage()) for p in segment.parameters()}
            made = [weakref.ref(x) for x in saved if x is not None and id(x.untyped_storage()) not in own]
            made.append(weakref.ref(given.untyped_storage()))
            result.sum().backward()
            leaves = [given, *segment.parameters()]
            made += [weakref.ref(x.grad) for x in leaves]
            for x in leaves:
                x.grad = None
            del result, saved, given, x, leaves[0]
            gc.collect()
            assert len(made) > len(leaves) and not [alive for alive in made if alive() is not None]
