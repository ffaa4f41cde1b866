"""Recomputes segments that change buffers (batch norm): the second forward reads the old values, the new ones stay.

``checkpoint(layer, x, context_fn=restores_buffers(layer))`` runs the second forward with the buffers as they were
before the first, and puts back what they have become since.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor, nn

Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]


def restores_buffers(segment: nn.Module) -> Callable[[], Contexts]:
    """``context_fn`` of torch's ``checkpoint``, which calls it before the first forward."""
    return lambda: (nullcontext(), within(segment, values(segment)))


def values(segment: nn.Module) -> list[Tensor]:
    return [buffer.detach().clone() for buffer in segment.buffers()]


@contextmanager
def within(segment: nn.Module, before: Sequence[Tensor]) -> Iterator[None]:
    """Within it the buffers have the values they had before."""
    now = values(segment)
    put(segment, before)
    try:
        yield
    finally:
        put(segment, now)


def put(segment: nn.Module, chosen: Sequence[Tensor]) -> None:
    """By ``.data``, which counts as no change of what autograd has saved: the backward that follows reads none."""
    for buffer, value in zip(segment.buffers(), chosen, strict=True):
        buffer.data.copy_(value)
