"""Two foldings of the same ranks: dense layers over dp x cp x tp, a mixture's experts over edp x ep x etp.

The mesh has finer axes, of which both are unions. Experts' ranks lie innermost first: ``etp`` are the innermost of a
tensor-parallel group, over which each expert is split; ``ep`` goes on outwards, over the rest of that group, the
context's axis, and a part of the data axis. What is left is edp. Where ``ep`` ends within the context's axis, its inner
part is an axis of its own, ``cp2``; where it ends within the data axis, that part is ``ep``, inside ``dp``. An ``ep``
that would end in both lies within the data axis, if it divides that.

    dp=4 cp=2 tp=2, ep=8 etp=1    mesh dp=2 ep=2 cp=2 tp=2, experts over ep, cp and tp
    dp=4 tp=4, ep=4 etp=2         mesh dp=2 ep=2 tp=2 tp2=2, experts over ep and tp, each split over tp2
    cp=4 tp=2, ep=4 etp=1         mesh cp=2 cp2=2 tp=2, experts over cp2 and tp

Source: Liu et al. 2025, "MoE Parallel Folding" (arXiv 2504.14960), whose experts' order is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.ir.mesh import CONTEXT, EXPERT, INNER_CONTEXT, TENSOR, zero_axes


@dataclass(frozen=True)
class Folding:
    """data    ranks of dp that experts are split over: the mesh's axis ``ep``
    beside  its other axes over which they are, outermost first: ``cp`` or its inner factor, tensor axes
    inner   ranks of that factor; 1 where experts are over all of cp, or none
    """

    data: int = 1
    beside: tuple[str, ...] = ()
    inner: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the mesh over which experts are split."""
        return (EXPERT,) * (self.data > 1) + self.beside

    @property
    def shards(self) -> tuple[str, ...]:
        """Those of them over which ZeRO shards dense weights."""
        possible = zero_axes(self.axes)
        return tuple(axis for axis in self.axes if axis in possible)

    def beside_data(self, cp: int) -> int:
        """Ranks, beside those along the axis ``dp``, over which ZeRO shards dense weights."""
        if self.shards:
            return self.data * cp
        return 1 if CONTEXT in self.beside else cp // self.inner


def fold(dp: int, cp: int, tensor: tuple[int, ...], ep: int, etp: int) -> Folding | None:
    """How experts lie over ep x etp of a stage's dp x cp x tensor ranks; None where they can't.

    tensor  sizes of the tensor axes, outermost first
    """
    if ep == 1:
        return Folding()
    named = dict(zip(TENSOR, tensor, strict=False))
    outer = next((n for n in range(len(tensor) + 1) if math.prod(tensor[n:]) == etp), None)
    if outer is None or ep % math.prod(tensor[:outer]):
        return None
    left = ep // math.prod(tensor[:outer])
    tensor_axes = tuple(name for name in list(named)[:outer] if named[name] > 1)
    along = math.gcd(left, cp)
    if 1 < along == left < cp:
        return Folding(1, (INNER_CONTEXT, *tensor_axes), left)
    around = along == cp > 1
    data = left // cp if around else left
    return Folding(data, (CONTEXT,) * around + tensor_axes) if dp % data == 0 else None
