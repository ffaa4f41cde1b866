"""Each data rank's rows of a loader's batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from autoplan.ir.mesh import MICROBATCH
from autoplan.runtime.inference.agreed_batch import planned_rows
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import DATA

KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


def loader_of(loader: DataLoader, program: Program, join: int) -> DataLoader:
    """A loader with this rank's rows of batches of the program's.

    join  as many of the loader's batches make one of the program's

    Ranks that differ in other axes than the data axis load the same rows. A dataset that can only be iterated over is
    read whole by every rank, of which the program takes its rows.
    """
    options = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    if not options.get("num_workers"):
        options = {k: v for k, v in options.items() if k not in ("prefetch_factor", "multiprocessing_context")}
    if isinstance(loader.dataset, IterableDataset):
        size = None if loader.batch_size is None else join * loader.batch_size
        return DataLoader(loader.dataset, batch_size=size, drop_last=loader.drop_last, **options)
    if loader.batch_sampler is None:
        return loader
    return DataLoader(loader.dataset, batch_sampler=RowsOfRank(loader.batch_sampler, program, join), **options)


class RowsOfRank(BatchSampler):
    """The indices of this data rank's rows of each batch, in the program's order of microbatches.

    A batch of another size than the program's, the last one say, is split evenly, or whole on all ranks where it can't
    be, which an evaluation takes.
    """

    def __init__(self, batches: Iterable, program: Program, join: int) -> None:
        self.batches, self.join = batches, join
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
        joined: list[int] = []
        for number, batch in enumerate(self.batches, 1):
            joined += batch
            if number % self.join == 0:
                yield self.own(joined)
                joined = []
        if joined and not self.drop_last:
            yield self.own(joined)

    def own(self, batch: list[int]) -> list[int]:
        parts = self.microbatches if len(batch) == self.rows else 1
        if len(batch) % (parts * self.ranks):
            return batch
        each = len(batch) // (parts * self.ranks)
        starts = ((part * self.ranks + self.rank) * each for part in range(parts))
        return [index for start in starts for index in batch[start : start + each]]

    def __len__(self) -> int:
        count = len(self.batches)  # type: ignore[arg-type]
        return count // self.join if self.drop_last else -(-count // self.join)
