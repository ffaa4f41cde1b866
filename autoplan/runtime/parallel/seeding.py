"""Seeds of what each rank draws for itself (``Training(randomness="per-rank")``).

A seed is a hash of the step's key, the microbatch, the call, and the rank's place along the axes that split the tensor.
So ranks that hold the same draw the same, shards draw differently, and a recomputed forward draws again what it drew
(Megatron-LM's CudaRNGStatesTracker keeps states for this, Shoeybi et al. 2019). Keys lie on the host, where generators
take their seeds.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from autoplan.ir.randomness import KEY
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.program_spec import ProgramSpec

DRAWN_OVER = "attention_drawn_over"  # the attribute of a segment that has the axes that split what its attention drops
_WORD = (1 << 64) - 1


def seed_of(key: Tensor, call: int, axes: Sequence[MeshAxis], each_microbatch: bool = True) -> int:
    """64 bits for one call on this rank (SplitMix64's finaliser, Steele et al. 2014, over the words one by one)."""
    step, microbatch = key.view(-1).tolist()
    place, _ = index_over(axes)
    state = 0
    for word in (step, microbatch if each_microbatch else _WORD, call, place):
        state = (state + word + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """The caller's random states are afterwards what they were: what is seeded within is no one else's."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=()):
            yield
    else:
        current = torch.get_device_module(device).current_device()
        with torch.random.fork_rng(devices=(current,), device_type=device.type):
            yield


def drawing(spec: ProgramSpec, device: torch.device) -> AbstractContextManager:
    """What a forward or backward runs within, so that the caller's random states are left alone."""
    return generators_kept(device) if spec.draws_by_rank else nullcontext()


def seeded(segment: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A segment's compiled forward, each call of it begun from the seed of what its attention drops; the same forward
    where it drops nothing."""
    axes = getattr(segment, DRAWN_OVER, None)
    if axes is None:
        return forward
    place = list(inspect.signature(type(segment).forward).parameters).index(KEY) - 1  # without self
    call = cast(int, segment.first_dropout)

    def run(*inputs: Any) -> Any:
        reseed(next(x for x in inputs if isinstance(x, Tensor)).device, seed_of(inputs[place], call, axes))
        return forward(*inputs)

    return run


def reseed(device: torch.device, seed: int) -> None:
    """Torch's generator of a device starts from a seed."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.get_device_module(device).manual_seed(seed)
