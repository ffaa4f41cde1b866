"""Random draws in little memory: the numbers that one call on a whole tensor takes, taken a piece at a time.

torch's generator on the CPU gives numbers in sequence. ``uniform_`` takes one for each element, in order; ``normal_``
of at least 16 elements one for each, turned into normal ones within blocks of 16 (Box and Muller 1958), and 16 more
where the last block isn't full. Pieces of whole blocks, the last one of at least a block, so take what the whole takes;
``tests/initialise/test_initialise_draws.py`` holds it to the bit.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn

PIECE = 1 << 16  # elements drawn at once, a multiple of a block
NORMAL, UNIFORM = "aten.normal_.default", "aten.uniform_.default"
IN_ORDER = (NORMAL, UNIFORM)
OFTEN = 0.3  # the probability of lying inside, above which torch draws a normal number again until it does


def pieces(elements: int) -> Iterator[slice]:
    """Every piece; the last has between one and two times ``PIECE`` elements, or all there are."""
    start = 0
    while elements - start > 2 * PIECE:
        yield slice(start, start + PIECE)
        start += PIECE
    yield slice(start, elements)


def pass_over(op: str, elements: int, dtype: torch.dtype, bounds: tuple, generator: torch.Generator) -> None:
    """Takes the numbers that an operator of ``IN_ORDER`` takes for a contiguous tensor of so many elements.

    bounds  its further arguments: the mean and the deviation, or the ends
    """
    for piece in pieces(elements):
        blank = torch.empty(piece.stop - piece.start, dtype=dtype)
        if op == NORMAL:
            blank.normal_(*bounds, generator=generator)
        else:
            blank.uniform_(*bounds, generator=generator)


def truncated_normal_(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator
) -> torch.Tensor:
    """What ``torch.nn.init.trunc_normal_`` makes of a tensor, without its copies of it.

    Where a normal number seldom lies between a and b, and where the tensor isn't contiguous, it is torch's own.
    """
    inside = math.erf((b - mean) / std / math.sqrt(2)) - math.erf((a - mean) / std / math.sqrt(2))
    if inside / 2 <= OFTEN or not tensor.is_contiguous():
        return nn.init.trunc_normal_(tensor, mean, std, a, b, generator)
    low, high = (float(torch.tensor(bound, dtype=tensor.dtype)) for bound in (a, b))
    flat = tensor.view(-1).normal_(mean, std, generator=generator)
    while any(bool(outside(flat[piece], low, high).any()) for piece in pieces(flat.numel())):
        for piece in pieces(flat.numel()):
            again = torch.empty_like(flat[piece]).normal_(mean, std, generator=generator)
            flat[piece] = torch.where(outside(flat[piece], low, high), again, flat[piece])
    return tensor


def outside(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return (x < low) | (x > high)
