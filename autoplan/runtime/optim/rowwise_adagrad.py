"""Row-wise Adagrad: one accumulator for each row of a matrix, the mean of its elements' squared gradients.

FBGEMM's and TorchRec's EXACT_ROWWISE_ADAGRAD (Ivchenko et al. 2022), for embedding tables: of a row w with gradient g,

    a += mean(g²)        w -= lr · g / (√a + eps)

A row that nobody looked up has no gradient, and neither it nor its accumulator is touched. Of placed tables whose
gradients are rows (``runtime.looked_up``) no other is even read. A vector's elements are rows by
themselves, as in Adagrad; of more dims than two, rows lie along the last.

Where ranks hold some columns of a row, or parts of a fused matrix do, each keeps the row's accumulator, which is the
same: their sums of squares are added up. Rows that one rank has whole ask nobody.

A checkpoint has an accumulator for each element, its row's, so that a plan that splits the parameter otherwise reads
what overlaps its own; memory has one for each row.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.looked_up import RowGradients, kept_by_rows, rows_of
from autoplan.runtime.optim.clip import add_up
from autoplan.runtime.optim.gathered_optimizer import GatheredOptimizer
from autoplan.runtime.parallel.flat_param_views import pieces
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.row_cache import WEIGHTS, updatable

ROW_SUM = "row_sum"


@dataclass(frozen=True)
class RowBlock:
    """Rows that lie one after another in what a rank has of a parameter.

    values   their elements there, flat
    rows, columns   how many, of how many elements here
    width    elements of the whole row
    skip     elements of the first row that come before, on another rank
    """

    values: slice
    rows: int
    columns: int
    width: int
    skip: int = 0

    @property
    def whole(self) -> bool:
        return self.values.stop - self.values.start == self.rows * self.columns

    def matrix(self, flat: Tensor) -> Tensor:
        """[rows, columns]; a view where all elements are here, else with zeros for those that aren't."""
        here = flat[self.values]
        if self.whole:
            return here.view(self.rows, self.columns)
        padded = here.new_zeros(self.rows * self.columns)
        padded[self.skip : self.skip + here.numel()] = here
        return padded.view(self.rows, self.columns)

    def repeated(self, each: Tensor) -> Tensor:
        """Of a number for each row, one for each element here."""
        return each.repeat_interleave(self.columns)[self.skip : self.skip + self.values.stop - self.values.start]

    def first(self, flat: Tensor) -> Tensor:
        """Of a number for each element, each row's first here."""
        places = torch.arange(self.rows, device=flat.device) * self.columns - self.skip
        return flat[self.values][places.clamp(min=0)]


Sums = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
"""(parameters that are stepped, [rows here] sums of squares of each): makes these the sums over the whole rows."""


class RowwiseAdagrad(Optimizer):
    """The rule above.

    blocks      of parameters of which ranks hold parts, how rows lie in this rank's; of others as they are
    whole_sums  where they do: adds up what they have of a row
    """

    def __init__(self, params: ParamsT, lr: float = 1e-2, eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})
        self.blocks: Mapping[Tensor, Sequence[RowBlock]] = {}
        self.whole_sums: Sums = lambda parameters, sums: None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. Where a row is split, every rank of the world takes part."""
        stepped = list(self.stepped())
        sums = [self.squares(parameter) for parameter, _ in stepped]
        self.whole_sums([parameter for parameter, _ in stepped], sums)
        for (parameter, group), squares in zip(stepped, sums, strict=True):
            self.update(parameter, group, squares)
        for group in self.param_groups:
            for parameter in group["params"]:
                looked_up = rows_of(parameter)
                if looked_up is not None and looked_up.boxes:
                    self.update_rows(parameter, group, looked_up)

    def stepped(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """The parameters with a gradient, each with its group's options."""
        for group in self.param_groups:
            yield from ((p, group) for p in group["params"] if p.grad is not None)

    def blocks_of(self, parameter: Tensor) -> Sequence[RowBlock]:
        if parameter in self.blocks:
            return self.blocks[parameter]
        shape = local(parameter).shape
        return (matrix_block(tuple(shape), shape[-1] if len(shape) > 1 else 1),)

    def squares(self, parameter: Tensor) -> Tensor:
        """[rows here]: of each row, what is here of it."""
        assert parameter.grad is not None
        flat = local(parameter.grad).reshape(-1)
        norms = [torch.linalg.vector_norm(block.matrix(flat), dim=1) for block in self.blocks_of(parameter)]
        return torch.cat(norms).square_() if norms else flat[:0].clone()

    def update(self, parameter: Tensor, group: Mapping[str, Any], squares: Tensor) -> None:
        """``squares`` of the whole rows."""
        sums = self.row_sums(parameter)
        assert parameter.grad is not None
        values, gradient = local(parameter.detach()).view(-1), local(parameter.grad).reshape(-1)
        first = 0
        for block in self.blocks_of(parameter):
            mine = slice(first, first + block.rows)
            first += block.rows
            sums[mine].add_(squares[mine], alpha=1 / block.width)
            steps = group["lr"] / (sums[mine].sqrt() + group["eps"])
            if not block.whole:
                values[block.values].addcmul_(gradient[block.values], block.repeated(steps), value=-1)
                continue
            into, by = block.matrix(values), block.matrix(gradient)
            if parameter.dim() > 1 or block.columns == 1:
                into.addcmul_(by, steps.masked_fill(squares[mine] == 0, 0.0)[:, None], value=-1)
            else:  # tables, of whose rows few may have a gradient
                touched = squares[mine].nonzero()[:, 0]
                into.index_add_(0, touched, by[touched] * steps[touched, None], alpha=-1)

    def update_rows(self, parameter: Tensor, group: Mapping[str, Any], looked_up: RowGradients) -> None:
        """Of the rows that were looked up; no other is read. Those that members of the tables' axis have by columns are
        the same on all of them, so that their sums of squares are added up as they lie."""
        sums, values, first, boxes = self.row_sums(parameter), local(parameter.detach()).view(-1), 0, []
        for block in self.blocks_of(parameter):
            if block.values.start in looked_up.boxes:
                boxes.append((block, first, looked_up.boxes[block.values.start]))
            first += block.rows
        squares = [torch.linalg.vector_norm(each.values, dim=1).square_() for _, _, each in boxes]
        split = [mine for (block, _, _), mine in zip(boxes, squares, strict=True) if block.columns < block.width]
        if split and looked_up.axis is not None:
            total = torch.cat(split).double()
            add_up(total, looked_up.axis)
            for mine, whole in zip(split, total.split([len(mine) for mine in split]), strict=True):
                mine.copy_(whole)
        for (block, first, each), mine in zip(boxes, squares, strict=True):
            for some in updatable(parameter, block.values.start, each, mine != 0):
                accumulated = some.matrix(ROW_SUM, sums[first : first + block.rows])
                found = accumulated[some.places].add_(mine[some.which], alpha=1 / block.width)
                accumulated.index_copy_(0, some.places, found)
                steps = (group["lr"] / (found.sqrt() + group["eps"])).masked_fill_(mine[some.which] == 0, 0.0)
                weights = some.matrix(WEIGHTS, block.matrix(values))
                weights.index_add_(0, some.places, each.values[some.which] * steps[:, None], alpha=-1)

    def row_sums(self, parameter: Tensor) -> Tensor:
        """[rows here]: the accumulators, which begin at zero."""
        state, blocks = self.state[parameter], self.blocks_of(parameter)
        count = sum(block.rows for block in blocks)
        here = local(state[ROW_SUM]) if ROW_SUM in state else local(parameter).new_zeros(count)
        if here.shape != (count,):  # as a checkpoint has them
            flat = here.reshape(-1)
            here = torch.cat([block.first(flat) for block in blocks]) if blocks else flat[:0]
        state[ROW_SUM] = here
        return here

    def of_elements(self, parameter: Tensor) -> dict[str, Any]:
        """The state as a checkpoint has it."""
        found, sums, first = torch.zeros_like(parameter), self.row_sums(parameter), 0
        flat = local(found).view(-1)
        for block in self.blocks_of(parameter):
            flat[block.values] = block.repeated(sums[first : first + block.rows])
            first += block.rows
        return {**self.state[parameter], ROW_SUM: found}

    def follow(
        self, spec: ProgramSpec, held: Sequence[ShardedParameter], device: torch.device, replica: MeshAxis | None = None
    ) -> None:
        """Of a program's parameters on this rank."""
        widths, spread = widths_of(spec.lowered.parameters), split_rows(spec)
        by_rows = kept_by_rows(spec.lowered)
        apart = {m.source for stored in spec.lowered.parameters if stored.name in by_rows for m in stored.members}
        spread = {source: rows for source, rows in spread.items() if source not in apart}
        self.blocks = {h.updated: row_blocks(h, widths[h.stored.source]) for h in held}
        if spread:
            self.whole_sums = sums_over_ranks(held, spread, device, replica)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.row_sums(parameter)


class RowwiseRule:
    """Row-wise Adagrad as the optimizer of a group beside others, made anew for each update (``GatheredOptimizer``)."""

    def __init__(
        self, spec: ProgramSpec, held: Sequence[ShardedParameter], device: torch.device, replica: MeshAxis | None
    ) -> None:
        self.known = RowwiseAdagrad([nn.Parameter(torch.empty(0))])
        self.known.follow(spec, held, device, replica)

    def __call__(self, params: ParamsT, **options: Any) -> RowwiseAdagrad:
        made = RowwiseAdagrad(params, **options)
        made.blocks, made.whole_sums = self.known.blocks, self.known.whole_sums
        return made


def rule_of(optimizer: Optimizer, parameter: Tensor) -> RowwiseAdagrad | None:
    """Row-wise Adagrad, where it updates the parameter."""
    if isinstance(optimizer, GatheredOptimizer):
        optimizer = optimizer.updating(parameter)
    return optimizer if isinstance(optimizer, RowwiseAdagrad) else None


def state_of_elements(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """An optimizer's state of a parameter as a checkpoint has it."""
    rowwise = rule_of(optimizer, parameter)
    return optimizer.state[parameter] if rowwise is None else rowwise.of_elements(parameter)


def matrix_block(shape: Sequence[int], width: int) -> RowBlock:
    """Of what lies as one; of a vector each element."""
    columns = shape[-1] if len(shape) > 1 else 1
    rows = math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)
    return RowBlock(slice(0, rows * columns), rows, columns, width)


def is_flat(stored: StoredParameter) -> bool:
    """Whether matrices lie in it one after another."""
    return bool(stored.members) and len(stored.type.shape) == 1


def row_blocks(held: ShardedParameter, width: int) -> tuple[RowBlock, ...]:
    if not is_flat(held.stored):
        return (matrix_block(held.part.shape, width),)
    return tuple(
        RowBlock(each.values, each.rows.shape[0], each.rows.shape[1], each.member.shape[1], each.skip)
        for each in pieces(held.stored, held.part)
    )


def widths_of(stored: Sequence[StoredParameter]) -> dict[str, int]:
    """Elements of a whole row of each of the user's parameters: pieces of a fused one along the last dim together."""
    found: dict[str, int] = {}
    for each in stored:
        last = len(each.type.shape) - 1
        size = each.type.shape[-1] if last > 0 else 1
        found[each.source] = size + (found.get(each.source, 0) if each.dim == last > 0 else 0)
    return found


def split_rows(spec: ProgramSpec) -> dict[str, tuple[int, ...]]:
    """The user's parameters of whose rows several ranks, or several pieces, have some: the shape of their rows."""
    stored = spec.lowered.parameters
    cut = {each.name for each in stored if spec.shard_axes(each)}  # ZeRO cuts a flat one anywhere
    found: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, list[int]] = {}
    for each in stored:
        shape, last = each.type.shape, len(each.type.shape) - 1
        if is_flat(each):
            apart = (m for m in each.members if m.size[1] < m.shape[1] or each.name in cut)
            found |= {member.source: member.shape[:1] for member in apart}
        elif last > 0:
            known = shapes.setdefault(each.source, [0 if d == each.dim else n for d, n in enumerate(shape)])
            if each.dim >= 0:
                known[each.dim] += shape[each.dim]
            by_layout = bool(each.layout.dims[last])
            if by_layout or each.dim == last or each.source in found:
                found[each.source] = ()
    return {source: rows or tuple(shapes[source][:-1]) for source, rows in found.items()}


def sums_over_ranks(
    held: Sequence[ShardedParameter], spread: Mapping[str, tuple[int, ...]], device: torch.device,
    replica: MeshAxis | None,
) -> Sums:  # fmt: skip
    """Adds the squares of split rows up: one all-reduce over the world, of a number for each such row.

    spread  these rows' shapes by the user's parameters, the same on every rank

    A part that several ranks keep counts once: each contributes its share, as in clipping.
    """
    starts, count = {}, 0
    for source, shape in spread.items():
        starts[source] = count
        count += math.prod(shape)
    places: dict[Tensor, tuple[tuple[Tensor, Tensor], int]] = {
        h.updated: (row_places(h, spread, starts), h.copies) for h in held
    }

    def whole(parameters: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
        total = torch.zeros(count, dtype=torch.float64, device=device)
        for parameter, mine in zip(parameters, sums, strict=True):
            (here, there), copies = places[parameter]
            total.index_add_(0, there.to(device), mine[here].to(total) / copies)
        add_up(total, replica)
        for parameter, mine in zip(parameters, sums, strict=True):
            here, there = places[parameter][0]
            mine[here] = total[there.to(device)].to(mine)

    return whole


def row_places(
    held: ShardedParameter, spread: Mapping[str, tuple[int, ...]], starts: Mapping[str, int]
) -> tuple[Tensor, Tensor]:
    """(which of this rank's rows of a parameter are split, where each lies among all such)."""
    here, there, first = [], [], 0
    if is_flat(held.stored):
        for each in pieces(held.stored, held.part):
            rows = each.rows.shape[0]
            if each.member.source in spread:
                here.append(torch.arange(first, first + rows))
                there.append(starts[each.member.source] + each.rows.start[0] + torch.arange(rows))
            first += rows
    elif held.stored.source in spread:
        part, shape = held.part, spread[held.stored.source]
        moved = part.shifted(held.stored.dim, held.stored.start) if held.stored.dim >= 0 else part
        numbers = torch.arange(math.prod(shape)).view(shape)[moved.slices[:-1]].flatten()
        here, there = [torch.arange(len(numbers))], [starts[held.stored.source] + numbers]
    empty = torch.zeros(0, dtype=torch.int64)
    return torch.cat([empty, *here]), torch.cat([empty, *there])
