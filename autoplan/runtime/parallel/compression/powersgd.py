"""PowerSGD: gradients go over the data axis as two factors of low rank, and what these leave out is added next time.

Vogels, Karimireddy and Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
algorithms 1 and 2. On rank w, with its gradient G_w as a matrix [n, m], its error E_w and the factor Q [m, r],

    M_w = G_w + E_w
    P   = orthonormalised sum of M_w Q           [n, r], summed over the data axis
    E_w = M_w - P (P' M_w)
    Q   = sum of M_w' P                          [m, r], likewise
    G   = P Q'                                   the gradient that every rank goes on with

Q stays for the next step (the warm start), and begins as a draw that all ranks have alike. A step moves two sums, of
all P together and of all Q. The sum of E_w over the ranks is all that later steps depend on, so on one device the same
gradients come of one matrix and one error (the authors' lemma on linearity): that is what verification compares with,
and what a checkpoint holds, for any data axis.

torch's ``powerSGD_hook`` computes the same gradients. It isn't used here (``compressor`` has why), and waits for the
device in each step.
"""

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import matrix_of
from autoplan.runtime.parallel.compression.compressor import FACTOR, Compressor, shape_of
from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class LowRankSums(Compressor):
    """The gradients of one group that are matrices, on one rank; ``errors``: E_w of each, in its shape."""

    def __init__(self, held: Sequence[ShardedParameter], group: ProcessGroup, rank: int, seed: int) -> None:
        super().__init__(held, group)
        self.rank, self.seed = rank, seed
        self.sizes = [matrix_of(shape_of(h)) for h in self.held]
        like = self.errors[0]
        self.sent = like.new_empty(sum(n * rank for n, _ in self.sizes) + len(self.held))
        self.lefts = views(self.sent, [(n, rank) for n, _ in self.sizes])
        self.had = self.sent[-len(self.held) :]
        self.flat = like.new_empty(sum(m * rank for _, m in self.sizes))
        self.rights = views(self.flat, [(m, rank) for _, m in self.sizes])
        self.begin()

    @property
    def factors(self) -> dict[str, Tensor]:
        """Each Q, by the parameter and the box of it that this rank has."""
        keys = [f"{FACTOR}/{h.name}/{box_text(h.part)}" for h in self.held]
        return dict(zip(keys, self.rights, strict=True))

    @torch.no_grad()
    def begin(self, keys: Sequence[str] | None = None) -> None:
        """Draws every Q, or those of these keys. Errors are zero where all are drawn."""
        super().begin(keys)
        for (key, right), held in zip(self.factors.items(), self.held, strict=True):
            if keys is None or key in keys:
                right.copy_(first_factor(held.name, held.part, self.rank, self.seed, right.dtype))

    @torch.no_grad()
    def sum_up(self) -> None:
        matrices = [error.view(size) for error, size in zip(self.errors, self.sizes, strict=True)]
        missing, rights = any(h.parameter.grad is None for h in self.held), self.rights
        self.had.fill_(1)
        for place, held in enumerate(self.held):
            if held.parameter.grad is None:
                self.had[place] = 0
            else:
                self.errors[place].add_(held.parameter.grad)
                held.parameter.grad = None  # its memory is that of what comes in its place
            torch.mm(matrices[place], rights[place], out=self.lefts[place])
        dist.all_reduce(self.sent, group=self.group)
        had = self.had.tolist() if missing else [1] * len(self.held)  # read where it matters: a device stops for it
        self.orthonormalise()
        before = [right.clone() for right in rights] if missing else rights
        for place, (matrix, left, right) in enumerate(zip(matrices, self.lefts, rights, strict=True)):
            torch.mm(matrix.t(), left, out=right)
            if had[place]:
                matrix.addmm_(left, right.t(), alpha=-1)
        dist.all_reduce(self.flat, group=self.group)
        for place, (held, left, right) in enumerate(zip(self.held, self.lefts, rights, strict=True)):
            if had[place]:
                held.parameter.grad = torch.mm(left, right.t()).view(held.parameter.shape)
            else:
                right.copy_(before[place])

    def orthonormalise(self) -> None:
        """Each P, those of as many rows together."""
        for first, last in runs(self.sizes):
            together = orthonormal(torch.stack(self.lefts[first:last]))
            for left, one in zip(self.lefts[first:last], together, strict=True):
                left.copy_(one)


def orthonormal(columns: Tensor) -> Tensor:
    """[k, n, r] with orthonormal columns that span the same, in place.

    Gram-Schmidt, each column three times. What is rounding after the first time is orthogonal to the others after the
    second (Giraud, Langou and Rozloznik 2005), unless it lies in their span: where few rows aren't zero, or rows are
    alike, their roundings are, too. A column that the second time takes more than half of has nothing of its own
    (Kahan's criterion). The unit vector that is farthest from the others stands in for it, so that a gradient that was
    zero can be sent later. Few kernels for all of a shape, where a device's QR takes one matrix after another.
    """
    for place in range(columns.shape[2]):
        before, column = columns[:, :, :place], columns[:, :, place]
        farthest = before.square().sum(2).argmin(1, keepdim=True)
        unit = torch.zeros_like(column).scatter_(1, farthest, 1.0)
        for least in (torch.finfo(column.dtype).tiny, 0.5, 0.0) if place else (torch.finfo(column.dtype).tiny,):
            if place:
                column = column - (before @ (before.mT @ column[..., None]))[..., 0]
            length = torch.linalg.vector_norm(column, dim=1, keepdim=True)
            column = torch.where(length > least, column / length, unit)
        columns[:, :, place] = column
    return columns


def first_factor(name: str, part: Part, rank: int, seed: int, dtype: torch.dtype) -> Tensor:
    """[m, rank] on the CPU: the draw with which a box of a parameter begins, whichever rank has it."""
    text = f"{seed} {name} {box_text(part)}"
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1)
    return torch.randn(matrix_of(part.shape)[1], rank, generator=generator, dtype=torch.float64).to(dtype)


def box_text(part: Part) -> str:
    """``0:64,128:256``: the indices along each dim."""
    return ",".join(f"{start}:{start + size}" for start, size in zip(part.start, part.shape, strict=True))


def views(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """One behind the other."""
    found, place = [], 0
    for rows, columns in shapes:
        found.append(flat[place : place + rows * columns].view(rows, columns))
        place += rows * columns
    return found


def runs(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """[first, last) of those that follow one another with as many rows."""
    starts = [n for n, size in enumerate(sizes) if n == 0 or sizes[n - 1][0] != size[0]]
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))
