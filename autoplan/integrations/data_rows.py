"""Each data rank's rows of a loader's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from autoplan.errors import InputsError
from autoplan.ir.mesh import MICROBATCH
from autoplan.runtime.collectives.objects import from_all
from autoplan.runtime.inference.agreed_batch import planned_rows
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import DATA

KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


def loader_of(loader: DataLoader, program: Program, join: int, whole: bool = False) -> DataLoader:
    """A loader with this rank's rows of batches of the program's.

    join   as many of the loader's batches make one of the program's
    whole  collates the whole batch on every rank, of which the program takes the rank's rows: what a collator pads or
           draws is then as on one device

    Ranks that differ in other axes than the data axis load the same rows. A dataset that can only be iterated over is
    read whole by every rank, of which the program takes its rows.
    """
    options = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    if not options.get("num_workers"):
        options = {k: v for k, v in options.items() if k not in ("prefetch_factor", "multiprocessing_context")}
    read_whole = whole or isinstance(loader.dataset, IterableDataset)
    options["worker_init_fn"] = seeded_by(0 if read_whole else program.axes[DATA].rank, options.get("worker_init_fn"))
    if isinstance(loader.dataset, IterableDataset):
        size = None if loader.batch_size is None else join * loader.batch_size
        return DataLoader(loader.dataset, batch_size=size, drop_last=loader.drop_last, **options)
    if loader.batch_sampler is None:
        return loader
    return DataLoader(loader.dataset, batch_sampler=RowsOfRank(loader.batch_sampler, program, join, whole), **options)


def seeded_by(place: int, start: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """A loader's ``worker_init_fn``. Where it seeds by a rank, as transformers' does, by the place on the data axis:
    ranks that read the same rows have to draw alike."""
    if isinstance(start, partial) and "rank" in start.keywords:
        return partial(start.func, *start.args, **start.keywords | {"rank": place})
    return start


class RowsOfRank(BatchSampler):
    """The indices of this data rank's rows of each batch, in the program's order of microbatches.

    A batch of another size than the program's, the last one say, is split evenly, or whole on all ranks where it can't
    be, which an evaluation takes. InputsError, on every rank, where ranks' samplers begin with different rows.

    whole  the indices of all rows
    """

    def __init__(self, batches: Iterable, program: Program, join: int, whole: bool = False) -> None:
        self.batches, self.join, self.whole = batches, join, whole
        self.alone = program.spec.lowered.mesh.devices == 1
        self.ranks, self.rank = program.spec.size(DATA), program.axes[DATA].rank
        self.rows, self.microbatches = planned_rows(program.spec), program.spec.lowered.mesh.size(MICROBATCH)
        self.batch_size = join * getattr(batches, "batch_size", self.rows)
        self.drop_last = bool(getattr(batches, "drop_last", False))
        self.split_batches = True  # the batch size is that of all ranks together

    @property
    def sampler(self) -> Sampler:
        """The inner one's: libraries replace it by one that they can seed."""
        return getattr(self.batches, "sampler", None)  # type: ignore[return-value]

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self.batches.sampler = sampler  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        for one in (self.batches, self.sampler):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.joined()
        first = next(batches, [])
        if not self.alone:
            check_order(first)
        if first:
            yield self.own(first)
        yield from map(self.own, batches)

    def joined(self) -> Iterator[list[int]]:
        """The batches of all data ranks together."""
        joined: list[int] = []
        for number, batch in enumerate(self.batches, 1):
            joined += batch
            if number % self.join == 0:
                yield joined
                joined = []
        if joined and not self.drop_last:
            yield joined

    def own(self, batch: list[int]) -> list[int]:
        if self.whole:
            return batch
        parts = self.microbatches if len(batch) == self.rows else 1
        if len(batch) % (parts * self.ranks):
            return batch
        each = len(batch) // (parts * self.ranks)
        starts = ((part * self.ranks + self.rank) * each for part in range(parts))
        return [index for start in starts for index in batch[start : start + each]]

    def __len__(self) -> int:
        count = len(self.batches)  # type: ignore[arg-type]
        return count // self.join if self.drop_last else -(-count // self.join)


def check_order(first: list[Any]) -> None:
    """InputsError, on every rank, where the first batch isn't the same on all of them."""
    others = from_all(first)
    odd = [rank for rank, batch in enumerate(others) if batch != others[0]]
    if odd:
        one, other = shown(others[0]), shown(others[odd[0]])
        raise InputsError(
            f"a sampler that begins with rows {one} on rank 0 and {other} on rank {odd[0]}",
            "every rank takes its part of one order, and of two some rows would come twice and others never",
            "seed the sampler alike on all ranks, and give no DistributedSampler: rows are divided for you",
        )  # fmt: skip


def shown(batch: list[Any]) -> str:
    return ", ".join(map(str, batch[:4])) + (", …" if len(batch) > 4 else "")
