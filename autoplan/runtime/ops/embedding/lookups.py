"""Look-ups in tables that lie together in one flat parameter (``autoplan.search.tables``), on one rank or on several.

Placed, each rank has rows of the batch and boxes of tables. Indices go to the ranks that have boxes of their tables,
the vectors that these give come back: one all-to-all each; and the vectors' gradients go there again in the backward. A
box of some rows gives zeros for the others, and what comes from several boxes of a table is added up where it arrives:
a reduce-scatter. How much goes where follows from the boxes alone, so nothing is counted or padded at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from autoplan.ir.tables import Box, Cached, Placed
from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.looked_up import BoxGradient, distinct, rows_of
from autoplan.runtime.ops.embedding.ranges import check_tables
from autoplan.runtime.row_cache import BoxCache, cache_of, is_fake

ALONE = MeshAxis("", 1, 0)


def lookups(
    flat: Tensor, indices: Sequence[Tensor], scales: Sequence[Tensor], tables: Sequence[Sequence],
    boxes: Sequence[Sequence], sparse: bool = False, cached: Sequence = (),
) -> Tensor:  # fmt: skip
    """flat [N], indices [b] or [b, l] of each table, scales [b, l] of those that are scaled -> [b, columns]: what each
    table gives for the rows of the batch, side by side in the tables' order.

    sparse  the backward makes gradients of the looked-up rows alone, where a program keeps them
    cached  the tables lie elsewhere, and rows are read in the device's cache (``ir.tables.Cached``)
    """
    placed = Placed.of(tables, boxes, flat.numel())
    return _Lookups.apply(flat, _Exchange.of(placed, ALONE, indices, cached), sparse, len(indices), *indices, *scales)


def placed_lookups(
    flat: Tensor, indices: Sequence[Tensor], scales: Sequence[Tensor], tables: Sequence[Sequence],
    boxes: Sequence[Sequence], sparse: bool = False, cached: Sequence = (), *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """The same from this rank's part of the tables: flat S(0) [N/n], indices and scales S(0) -> S(0)."""
    (axis,) = axes
    placed = Placed.of(tables, boxes, flat.numel() * axis.size)
    return _Lookups.apply(flat, _Exchange.of(placed, axis, indices, cached), sparse, len(indices), *indices, *scales)


@dataclass(frozen=True)
class _Exchange:
    """What goes where: every rank has the same rows of the batch.

    everywhere  the boxes of each member
    first       the first element of this rank's part of the flat parameter
    cached      of each box, by its first element, the size of the device's cache of its rows; {}: it lies there
    """

    placed: Placed
    axis: MeshAxis
    rows: int
    everywhere: list[list[Box]]
    first: int
    cached: Mapping[int, tuple[int, int]]

    @staticmethod
    def of(placed: Placed, axis: MeshAxis, indices: Sequence[Tensor], cached: Sequence) -> _Exchange:
        first, how = placed.elements // axis.size * axis.rank, Cached.of(cached)
        sizes = zip(placed.boxes, how.boxes, strict=True) if how else ()
        each = {box.start: size for box, size in sizes}
        return _Exchange(placed, axis, len(indices[0]), placed.of_members(axis.size), first, each)

    @property
    def own(self) -> list[Box]:
        return self.everywhere[self.axis.rank]

    def view(self, flat: Tensor, box: Box) -> Tensor:
        """A box within this rank's part of the flat parameter, [rows, columns]."""
        return flat[box.start - self.first : box.stop - self.first].view(box.rows, box.columns)

    def cache(self, flat: Tensor, box: Box) -> BoxCache | None:
        """Of a box of this rank's; None where it lies on the device."""
        if not self.cached:
            return None
        kept = cache_of(flat)
        assert kept is not None, "the program keeps a cache of tables that it looks up in one"
        return kept.box(box.start - self.first, self.view(flat, box), self.cached[box.start])

    def there(self, each: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Of tensors [b, l], by table, those of this rank's tables from every rank: [n·b, l]."""
        if not each:
            return {}
        wanted = [[t for t in self.placed.indexed(boxes) if t in each] for boxes in self.everywhere]
        mine = [t for t in self.placed.indexed(self.own) if t in each]
        widths = [self.placed.tables[t].length for t in mine]
        parts = [[each[t] for t in tables] for tables in wanted]
        arrived = self.swap(parts, [sum(widths)] * self.axis.size, next(iter(each.values())))
        return dict(zip(mine, torch.cat(arrived).split(widths, 1), strict=True)) if mine else {}

    def back(self, pooled: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """What own boxes gave, [n·b, columns] each, to the ranks whose rows they are for; of each member what its boxes
        gave for this rank's rows, [b, columns]."""
        parts = [[p[m * self.rows : (m + 1) * self.rows] for p in pooled] for m in range(self.axis.size)]
        return self.swap(parts, [self.placed.columns(boxes) for boxes in self.everywhere], like)

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        """Of the result's gradient [b, columns] what is for own boxes, from every rank: [n·b, columns] each."""
        parts = [[self.of_box(gradient, box) for box in boxes] for boxes in self.everywhere]
        arrived = self.swap(parts, [self.placed.columns(self.own)] * self.axis.size, gradient)
        widths = [self.placed.columns([box]) for box in self.own]
        return list(torch.cat(arrived).split(widths, 1)) if widths else []

    def swap(self, parts: Sequence[Sequence[Tensor]], widths: Sequence[int], like: Tensor) -> list[Tensor]:
        """To each member some tensors [b, …] side by side; from each as wide a one as is expected. ``like``: their
        dtype, for what is empty."""
        nothing = like.new_empty(self.rows, 0)
        joined = [torch.cat([nothing, *(p.reshape(self.rows, -1) for p in each)], 1) for each in parts]
        if self.axis.size == 1:
            return joined
        arrived = raw.all_to_all_v([j.reshape(-1) for j in joined], [self.rows * width for width in widths], self.axis)
        return [a.view(self.rows, width) for a, width in zip(arrived, widths, strict=True)]

    def of_box(self, result: Tensor, box: Box) -> Tensor:
        """A box' columns of something shaped as the result, [b, places, columns]: a view of it."""
        table, start = self.placed.tables[box.table], self.placed.offsets()[box.table]
        whole = result[:, start : start + table.places * table.width].view(len(result), table.places, table.width)
        return whole[:, :, box.column : box.column + box.columns]

    def join(self, arrived: Sequence[Tensor]) -> Tensor:
        """The result of what every member's boxes gave, added up in the members' order."""
        result = arrived[0].new_zeros(self.rows, self.placed.width)
        for boxes, part in zip(self.everywhere, arrived, strict=True):
            widths = [self.placed.columns([box]) for box in boxes]
            for box, piece in zip(boxes, part.split(widths, 1) if boxes else (), strict=True):
                into = self.of_box(result, box)
                into.add_(piece.view(into.shape))
        return result


class _Lookups(Function):
    """Keeps the indices that came, and what rows are multiplied by. A table's gradient is as large as it is, or goes,
    of looked-up rows alone, past autograd ``into`` where they are kept."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, exchange: _Exchange, sparse: bool, count: int, *given: Tensor
    ) -> Tensor:
        placed, into = exchange.placed, rows_of(flat) if sparse else None
        small = all(table.rows <= torch.iinfo(torch.int32).max for table in placed.tables)
        kind = torch.int32 if small else torch.int64  # half the bytes on their way
        asked = [i.reshape(len(i), -1) for i in given[:count]]
        check_tables(asked, [table.rows for table in placed.tables])
        indices = {t: i.to(kind) for t, i in enumerate(asked)}
        scaled = [t for t, table in enumerate(placed.tables) if table.scaled]
        means = [t for t, table in enumerate(placed.tables) if table.pooling == "mean"]
        shares = {t: share_of(placed, t, indices[t], flat.dtype) for t in means}
        shares |= {t: s.to(flat.dtype) for t, s in zip(scaled, given[count:], strict=True)}
        came, weights = exchange.there(indices), exchange.there(shares)
        pooled: list[Tensor] = []
        saved: list[Tensor] = []
        for box in exchange.own:
            source = exchange.cache(flat, box) or exchange.view(flat, box)
            found, *kept = look_up(source, box, placed, came[box.table], weights.get(box.table))
            pooled.append(found)
            saved += kept
        ctx.exchange, ctx.shape, ctx.inputs, ctx.into = exchange, flat.shape, len(given), into
        ctx.save_for_backward(*saved)
        return exchange.join(exchange.back(pooled, flat.new_empty(0, device=given[0].device)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        exchange, into = ctx.exchange, ctx.into
        result = gradient.new_zeros(ctx.shape) if into is None else None
        kept: Iterator[Tensor] = iter(ctx.saved_tensors)
        for box, part in zip(exchange.own, exchange.gradients(gradient), strict=True):
            pooling, rows, shares = exchange.placed.tables[box.table].pooling, next(kept), next(kept)
            if result is not None:
                spread(exchange.view(result, box), part, pooling, rows, shares)
            else:
                into.add(box.start - exchange.first, looked_up(box, part, pooling, rows, shares))
        if into is not None:
            into.axis = exchange.axis
        return result, *(None for _ in range(3 + ctx.inputs))


def share_of(placed: Placed, table: int, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """What each index of a mean counts: one part of those that count."""
    counted = (indices != placed.tables[table].padding).to(dtype)
    return counted / counted.sum(-1, keepdim=True).clamp(min=1)


def look_up(
    source: Tensor | BoxCache, box: Box, placed: Placed, indices: Tensor, shares: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What a box gives for indices [b, l], [b, places·columns]; and what its gradient needs (``spread``), rows [b, l]
    and their shares.

    shares  [b, l], what rows are multiplied by; None: nothing but what is left out
    """
    table = placed.tables[box.table]
    local = indices.long() - box.row
    here = (local >= 0) & (local < box.rows)
    local, counts = local.masked_fill(~here, 0), here & (indices != table.padding)
    weight, places = (source, local) if isinstance(source, Tensor) else in_cache(source, local, here)
    if table.pooling == "max":
        values, which = bag_max(weight, places, counts)
        return values, local, which
    weights = counts.to(weight.dtype) if shares is None else shares.masked_fill(~counts, 0.0)
    if table.pooling == "none":
        rows = weight[places].masked_fill(~here.unsqueeze(-1), 0.0)
        return rows.reshape(len(rows), -1), local, weights
    return functional.embedding_bag(places, weight, mode="sum", per_sample_weights=weights), local, weights


def in_cache(cache: BoxCache, local: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """(a matrix, the place in it of each row [b, l] of a box). Rows that aren't the box' have any."""
    if is_fake(local):
        weight, places = cache.look_up(local.reshape(-1))
        return weight, places.view(local.shape)
    weight, found = cache.look_up(local[here])
    places = torch.zeros_like(local)
    places[here] = found
    return weight, places


def bag_max(weight: Tensor, places: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of each bag the greatest in each column, 0 where none counts; and which of its rows [b, columns] it came from, -1
    where none counts."""
    rows = weight[places].masked_fill(~counts.unsqueeze(-1), float("-inf"))
    values, which = rows.max(1)
    none = ~counts.any(-1, keepdim=True)
    return values.masked_fill(none, 0.0), which.masked_fill(none, -1)


def looked_up(box: Box, gradient: Tensor, pooling: str, rows: Tensor, shares: Tensor) -> BoxGradient:
    """A box' gradient, of the rows that were looked up."""
    found, slots = distinct(rows.reshape(-1), box.rows)
    values = gradient.new_zeros(len(found), box.columns)
    spread(values, gradient, pooling, slots.view(rows.shape), shares)
    return BoxGradient(box.rows, found, values)


def spread(weight: Tensor, gradient: Tensor, pooling: str, rows: Tensor, shares: Tensor) -> None:
    """Adds a box' gradient to the zeros of its place: of each row [.., columns] that was looked up its share. Of a
    maximum ``shares`` are the places where it was found."""
    if pooling == "max":
        none = shares < 0
        weight.scatter_add_(0, rows.gather(1, shares.masked_fill(none, 0)), gradient.masked_fill(none, 0.0))
        return
    gradient = gradient.view(*rows.shape, -1) if pooling == "none" else gradient.unsqueeze(1)
    for place in range(rows.shape[1]):  # one index of each bag at a time: all at once are as many rows as were read
        each = gradient[:, min(place, gradient.shape[1] - 1)] * shares[:, place, None]
        weight.index_add_(0, rows[:, place], each)
