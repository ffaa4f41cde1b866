"""Experts' rows rounded up to one of few numbers, where a product of another number of rows takes a kernel of its own.

On a CPU torch multiplies in 16 bits by oneDNN, which makes a kernel for each shape that it meets: half a millisecond to
one, as long as some hundred rows take. How many rows an expert gets differs from step to step, so kernels would be made
in every step. Rounded up to four leading bits there are eight numbers an octave, and no expert has more than an eighth
of its rows beside them. A row that fills up repeats the expert's last one, and counts nothing: its score is zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor

LEADING_BITS = 4


def rounds(hidden: Tensor) -> bool:
    """Whether rows of these tokens are rounded up where grouped products take them."""
    return hidden.device.type == "cpu" and hidden.dtype.itemsize == 2


def has_values(x: Tensor) -> bool:
    return not isinstance(x, FakeTensor)


def counted(even: int | torch.SymInt) -> int | torch.SymInt:
    """A size that is known once choices are counted, for a compiler; where nothing has values, the one expected."""
    try:
        return torch.library.get_ctx().new_dynamic_size()
    except DynamicOutputShapeException:
        return even


def rounded(rows: int) -> int:
    step = 1 << max(0, rows.bit_length() - LEADING_BITS)
    return -(-rows // step) * step


def filled_up(ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of experts' rows that lie one after another: which of them stands in each row once they are rounded up; which of
    these only fill up; and behind which row each expert's end.

    ends  int32 [experts], of what lies in the host's memory
    """
    last = ends.numpy()
    counts = np.diff(last, prepend=0)
    whole = np.fromiter(map(rounded, counts.tolist()), np.int64, len(counts))
    times = np.ones(last[-1], np.int64)
    some = counts > 0
    times[last[some] - 1] += (whole - counts)[some]
    rows = np.repeat(np.arange(len(times)), times)
    fill = np.flatnonzero(rows[1:] == rows[:-1]) + 1
    return torch.from_numpy(rows), torch.from_numpy(fill), torch.from_numpy(whole.cumsum().astype(np.int32))
