"""A loader's batches, as many as every rank has: training ends cleanly where they end, on all ranks at once."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from autoplan.errors import InputsError
from autoplan.lower.resized import planned_sizes
from autoplan.runtime.collectives.objects import meeting_place
from autoplan.runtime.data.batch_sizes import program_of, sizes_of
from autoplan.runtime.data.microbatches import Batch, Rows, named
from autoplan.runtime.elastic.launch import device_of
from autoplan.runtime.elastic.stderr_messages import note
from autoplan.runtime.program_spec import ProgramSpec


class Batches:
    """Iterates over a loader of your own, a DataLoader say, on every rank alike:

        batches = Batches(program.spec, loader, position=program.load_checkpoint(folder)["position"])
        for batch in batches:
            program.step(batch)
            program.optimizer.step()
            program.save_checkpoint(folder, extra={"position": batches.position})

    A short last batch is trained on. If the program can't run it (rows that the data axis doesn't divide, say), or
    ranks have different numbers of rows, the iteration ends before it, and stderr says so with cause and remedy. The
    iteration ends too, for all ranks, where any rank's loader does. What follows the loop, a last checkpoint say, is
    then run by all, and ``ended`` says why it ended. Iterating once more, for another epoch, begins the data anew:
    ``position`` counts the batches of one pass. After a break it goes on behind the last batch.

    loader    gives whole batches, the same on every rank, or each rank's own rows; its drop_last=True leaves short ones
              out without a word
    position  batches to skip: those of earlier runs in the same pass
    InputsError where the loader ends before ``position``, or gives no batch that a step takes: an iterator that can be
    gone through once, in a second pass.
    """

    def __init__(self, spec: ProgramSpec, loader: Iterable[Batch], position: int = 0) -> None:
        self.spec, self.loader, self.position = spec, loader, position
        self.device = device_of(str(dist.get_backend()), spec.on_processors)
        self.ended = ""  # once a pass is done
        self.passed = 0  # batches of an iterator that can be gone through once

    def __iter__(self) -> Iterator[Batch]:
        if self.ended:
            self.position, self.ended, self.passed = 0, "", 0
        given = iter(self.loader)
        first = self.skip(given)
        while True:
            batch = next(given, None)
            rows = 0 if batch is None else rows_of(self.spec, batch)
            first = first or rows
            refused = "" if batch is None or rows >= first else refusal(self.spec, batch, first)
            least, most, some_refused = extremes(self.device, rows, bool(refused))
            if some_refused or least == 0 or least < most:
                break
            assert batch is not None
            self.position += 1
            self.passed = self.position if given is self.loader else 0
            yield batch
        self.ended = f"the data ended after {self.position} batches" + " on another rank" * (batch is not None)
        if some_refused or least > 0:
            cause = refused or f"ranks have {least} to {most} rows of it"
            self.ended = f"batch {self.position + 1} has {rows} rows of {first}, and was left out: {cause}"
            if dist.get_rank() == 0:
                note(f"{self.ended}; drop_last=True of the loader says that it is meant")
        if self.position == 0:
            raise InputsError("the loader", f"it gives no batch for a step: {self.ended}", "give it more data")

    def skip(self, given: Iterator[Batch]) -> int:
        """Passes over the batches of earlier runs; the rows of the first of them."""
        first = 0
        for done in range(self.passed, self.position):
            batch = next(given, None)
            if batch is None:
                raise InputsError(
                    f"position={self.position}", f"the loader ends after {done} batches", "give it the same data again"
                )
            first = first or rows_of(self.spec, batch)
        return first


def rows_of(spec: ProgramSpec, batch: Batch) -> int:
    """How many rows of the data a batch has: the fewest of its inputs that have rows."""
    given = named([value.name for value in spec.lowered.batch], batch)
    return min((given[v.name].shape[0] for v in spec.lowered.batch if v.type.shape), default=0)


def refusal(spec: ProgramSpec, batch: Batch, first: int) -> str:
    """Why a step can't run a batch that is shorter than the first, which had so many rows; "" where it can."""
    form: Rows = "whole" if first == planned_sizes(spec.lowered).rows else "own"
    try:
        program_of(spec, sizes_of(spec, batch, form))
    except InputsError as error:
        return f"{error.cause}. {error.remedy}"
    return ""


def extremes(device: torch.device, rows: int, refused: bool) -> tuple[int, int, bool]:
    """The fewest and the most rows that any rank has, and whether any can't run its own; no accelerator is waited for
    where hosts meet by themselves."""
    having = torch.tensor([rows, -rows, -refused], device=meeting_place(device))
    dist.all_reduce(having, dist.ReduceOp.MIN)
    least, most, some_refused = having.tolist()
    return least, -most, bool(some_refused)
