"""A loader's batches, as many as every rank has: training ends cleanly where they end, on all ranks at once."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from autoplan.errors import InputsError
from autoplan.runtime.data.microbatches import Batch, named
from autoplan.runtime.elastic.launch import device_of
from autoplan.runtime.program_spec import ProgramSpec


class Batches:
    """Iterates over a loader of your own, a DataLoader say, on every rank alike:

        batches = Batches(program.spec, loader, position=program.load_checkpoint(folder)["position"])
        for batch in batches:
            program.step(batch)
            program.optimizer.step()
            program.save_checkpoint(folder, extra={"position": batches.position})

    Where the data end within a batch, its rows are left out, as by a DataLoader with drop_last, though a step takes a
    shorter batch, and the iteration ends; it ends too, for all ranks, where any rank's loader does.
    What follows the loop, a last checkpoint say, is then run by all, and ``ended`` says what was left out.

    loader    gives whole batches, the same on every rank, or each rank's own rows
    position  batches to skip: those of earlier runs
    InputsError where the loader ends before ``position``, or gives no batch at all.
    """

    def __init__(self, spec: ProgramSpec, loader: Iterable[Batch], position: int = 0) -> None:
        self.spec, self.loader, self.position = spec, loader, position
        self.ended = ""

    def __iter__(self) -> Iterator[Batch]:
        given = iter(self.loader)
        first = self.skip(given)
        while True:
            batch = next(given, None)
            rows = None if batch is None else rows_of(self.spec, batch)
            first = first or rows
            short = rows is not None and first is not None and rows < first
            if short:
                self.ended = f"batch {self.position + 1} has {rows} rows of {first}, and was left out"
            if not all_have(batch is not None and not short):
                break
            assert batch is not None
            self.position += 1
            yield batch
        where = "" if batch is None or short else " on another rank"
        self.ended = self.ended or f"the data ended after {self.position} batches{where}"
        if self.position == 0:
            raise InputsError("the loader", f"it gives no whole batch: {self.ended}", "give it more data")

    def skip(self, given: Iterator[Batch]) -> int | None:
        """Passes over the batches of earlier runs; the rows of the last of them."""
        rows = None
        for done in range(self.position):
            batch = next(given, None)
            if batch is None:
                raise InputsError(
                    f"position={self.position}", f"the loader ends after {done} batches", "give it the same data again"
                )
            rows = rows_of(self.spec, batch)
        return rows


def rows_of(spec: ProgramSpec, batch: Batch) -> int:
    """How many rows of the data a batch has: the fewest of its inputs that have rows."""
    given = named([value.name for value in spec.lowered.batch], batch)
    return min((given[v.name].shape[0] for v in spec.lowered.batch if v.type.shape), default=0)


def all_have(this: bool) -> bool:
    """Whether every rank has one."""
    having = torch.tensor(int(this), device=device_of(str(dist.get_backend())))
    dist.all_reduce(having, dist.ReduceOp.MIN)
    return bool(having.item())
