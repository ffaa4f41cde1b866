"""Tables that lie in the host's memory or on its disks, and a cache of their rows on the device.

It is FBGEMM's and TorchRec's ``fused_uvm_caching`` (Ivchenko et al. 2022): look-ups, their backward and the update of
looked-up rows run on rows that are in the cache. Those that aren't are fetched, with what the optimizer keeps of them;
the rows that are used least give their places up, and go back where an update has changed them. So between two steps
the newest values are partly here and partly there: ``flush`` before anything else reads the tables, ``drop`` once
something else has written them.

Which rows give way is said by least frequent use with dynamic ageing (LFU-DA, Arlitt et al. 2000): a row's rank is how
often it was looked up since it came, beyond the rank of the row that had to go last. So rows that once were used often
don't stay for ever. Rows that a look-up asks for stay while it runs, and come whatever their rank is.

How many rows are missing follows from values, so that the host waits for the device in each look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from autoplan.runtime.looked_up import BoxGradient, distinct

ATTRIBUTE = "row_cache"
WEIGHTS = ""  # the field of the rows themselves; others are named as the optimizer's state
NOWHERE = -1
NEVER = torch.iinfo(torch.int64).max  # the rank of rows that can't go
PART = 1 << 16  # rows that are written back at a time


@dataclass(frozen=True)
class Field:
    """Something of each row: ``there`` [rows, ..] of all of them, ``here`` [slots, ..] of those in the cache."""

    there: Tensor
    here: Tensor


@dataclass(frozen=True)
class RowsHere:
    """Rows of a box where they can be updated.

    places  where they lie in ``matrix``
    which   of the rows of the box' gradient they are
    cache   None: the box itself is here
    """

    places: Tensor
    which: Tensor | slice
    cache: BoxCache | None = None

    def matrix(self, name: str, box: Tensor) -> Tensor:
        """[.., columns] or [..], to write in place. ``box``: the whole of it, wherever it lies."""
        return box if self.cache is None else self.cache.field(name, box)


class BoxCache:
    """Of one box of tables.

    table   [rows, columns] where it lies
    slots   rows that there is room for
    missed  of those that a microbatch looks up so many as a rehearsal takes to be missing

    asked, missing  rows that were looked up until now, each once a time; of these those that weren't here
    """

    def __init__(self, table: Tensor, slots: int, missed: int, device: torch.device) -> None:
        self.count, self.slots, self.planned, self.device = len(table), slots, missed, device
        self.fields = {WEIGHTS: Field(table, table.new_zeros(slots, table.shape[1], device=device))}
        self.slot_of = torch.full((self.count + 1,), NOWHERE, dtype=torch.int32, device=device)  # the last: of no row
        self.row_of = torch.full((slots,), NOWHERE, dtype=torch.int64, device=device)
        self.uses, self.rank = self.row_of.new_zeros(slots), self.row_of.new_zeros(slots)
        self.changed = torch.zeros(slots, dtype=torch.bool, device=device)
        self.age = self.row_of.new_zeros(())
        self.asked = self.missing = 0

    def look_up(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """rows [n] -> (a matrix that has them, where each lies in it): the cache, or where there are more of them than
        it has room for, a copy."""
        rows, places, uses = counted(wanted, self.count)
        if len(rows) > self.slots:
            return self.copied(rows), places
        slots = self.find(rows, uses)
        return self.fields[WEIGHTS].here, slots[places]

    def copied(self, rows: Tensor) -> Tensor:
        """[n, columns] of rows, each once, of which some are here."""
        weights, slots = self.fields[WEIGHTS], self.slot_of[rows].long()
        found = weights.there[rows.cpu()].to(self.device)
        return torch.where((slots >= 0)[:, None], weights.here[slots.clamp(min=0)], found)

    def find(self, rows: Tensor, uses: Tensor | None = None) -> Tensor:
        """rows [n], each once, at most as many as there are slots -> the slot of each, where they are from here on.

        uses  of each; None: they are no look-up's
        """
        slots = self.slot_of[rows].long()
        missing = rows[: self.planned] if is_fake(rows) else rows[slots < 0]
        if len(missing):
            self.bring(missing, slots)
            slots = self.slot_of[rows].long()
        if uses is not None:
            self.asked, self.missing = self.asked + len(rows), self.missing + len(missing)
            self.uses[slots] += uses
            self.rank[slots] = self.uses[slots] + self.age
        return slots

    def bring(self, rows: Tensor, stay: Tensor) -> None:
        """Fetches rows that aren't here, in the place of those of least rank. ``stay``: slots that don't go, or -1."""
        kept = self.changed.new_zeros(self.slots + 1)
        kept[torch.where(stay < 0, self.slots, stay)] = True
        order = self.rank.masked_fill(self.row_of < 0, NOWHERE).masked_fill_(kept[:-1], NEVER)
        freed = order.sort(stable=True).indices[: len(rows)]
        old, last = self.row_of[freed], self.rank[freed].max()
        self.write_back(freed if is_fake(freed) else freed[self.changed[freed]])
        self.age = torch.maximum(self.age, last)
        self.slot_of[torch.where(old < 0, self.count, old)] = NOWHERE
        there = rows.cpu()
        for field in self.fields.values():
            field.here[freed] = field.there[there].to(self.device)
        self.row_of[freed], self.slot_of[rows] = rows, freed.int()
        self.uses[freed] = 0
        self.rank[freed] = self.age

    def field(self, name: str, there: Tensor) -> Tensor:
        """[slots, ..] of a field, which is made where it isn't yet; ``there``: of all rows."""
        if name not in self.fields:
            self.fields[name] = Field(there, there[self.row_of.clamp(min=0).cpu()].to(self.device))
        return self.fields[name].here

    def updatable(self, each: BoxGradient, touched: Tensor) -> Iterator[RowsHere]:
        """Rows that are ``touched`` [n], as many at a time as there is room for; then they are taken to be changed."""
        fewest = min(len(touched), self.slots)  # a rehearsal takes one part
        which = touched.new_zeros(fewest).long() if is_fake(touched) else touched.nonzero()[:, 0]
        for part in which.split(self.slots):
            slots = self.find(each.rows[part])
            self.changed[slots] = True
            yield RowsHere(slots, part, self)

    def write_back(self, slots: Tensor) -> None:
        """Rows that were changed go where the others are."""
        for part in slots.split(PART):
            rows = self.row_of[part].cpu()
            for field in self.fields.values():
                field.there.index_copy_(0, rows, field.here[part].cpu())
        self.changed[slots] = False

    @torch.no_grad()
    def flush(self) -> None:
        """Writes all changes back; what is here stays."""
        self.write_back(self.changed.nonzero()[:, 0])

    def drop(self) -> None:
        """Forgets what is here, changed or not: the tables' values, or the optimizer's state, are others."""
        self.fields = {WEIGHTS: self.fields[WEIGHTS]}
        for slots in (self.slot_of, self.row_of):
            slots.fill_(NOWHERE)
        for zeros in (self.uses, self.rank, self.age, self.changed):
            zeros.zero_()


class RowCache:
    """Of one flat parameter on this rank: of each box by its first element here, made as it is first looked up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.boxes: dict[int, BoxCache] = {}

    def box(self, start: int, table: Tensor, size: tuple[int, int]) -> BoxCache:
        """``table``: [rows, columns], a view of the parameter; size: as of ``ir.tables.Cached.boxes``."""
        if start not in self.boxes:
            self.boxes[start] = BoxCache(table.detach(), *size, self.device)
        return self.boxes[start]

    def flush(self) -> None:
        for box in self.boxes.values():
            box.flush()

    def drop(self) -> None:
        for box in self.boxes.values():
            box.drop()


def cache_of(parameter: Tensor) -> RowCache | None:
    """The device's cache of a parameter that lies elsewhere; None where it has none."""
    return getattr(parameter, ATTRIBUTE, None)


def keep_cache(parameter: Tensor, device: torch.device) -> None:
    """Has rows of a parameter be cached on a device from here on."""
    setattr(parameter, ATTRIBUTE, RowCache(device))


def updatable(parameter: Tensor, start: int, each: BoxGradient, touched: Tensor | None = None) -> Iterator[RowsHere]:
    """The rows of a box of a parameter that an update is of: all that were looked up, or of one that is cached those
    that are ``touched`` [n], None: that have a gradient."""
    cache = cache_of(parameter)
    if cache is None:
        yield RowsHere(each.rows, slice(None))
    else:
        yield from cache.boxes[start].updatable(each, each.values.any(1) if touched is None else touched)


def counted(wanted: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """rows [n] of ``count`` -> (each once, which of these each is, how often each is there)."""
    if is_fake(wanted):  # a rehearsal, which has no values
        rows, places = distinct(wanted, count)
        return rows, places, torch.ones_like(rows)
    rows, places, uses = torch.unique(wanted, return_inverse=True, return_counts=True)
    return rows, places, uses


def is_fake(x: Tensor) -> bool:
    return isinstance(x, FakeTensor)
