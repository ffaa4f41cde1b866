"""Steps at other sizes of the batch than the planned: a shorter last batch, shorter rows of tokens.

program.py reads its sizes off what enters, so the same modules run. What the runtime knows of sizes beside them, shapes
of messages and the order of microbatches, is made for each size when it first comes.
"""

from dataclasses import replace

import torch

from autoplan.errors import InputsError
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.runtime.collectives.objects import together
from autoplan.runtime.data.batch_sizes import program_of, sizes_of, unsettled
from autoplan.runtime.data.microbatches import Batch, Given, Rows, given_batch
from autoplan.runtime.engine import LoopEngine, PipelineEngine
from autoplan.runtime.program_spec import ProgramSpec

Engine = LoopEngine | PipelineEngine


class SizedSteps:
    """The plan, and the engine that runs it, by the sizes of the whole batch.

    whole  whether the last batch was given whole: then a shorter one that is the same on all ranks is, too
    """

    def __init__(self, spec: ProgramSpec, engine: Engine) -> None:
        self.spec, self.planned, self.whole = spec, planned_sizes(spec.lowered), False
        self.made: dict[BatchSizes, tuple[ProgramSpec, Engine]] = {self.planned: (spec, engine)}

    def checked(self, batch: Batch, rows: Rows | None, device: torch.device) -> Given:
        """A rank's batch, before all agree. InputsError where it is none of the plan's."""
        given = unsettled(self.spec, batch, rows, device, self.whole)
        if given is None:
            spec, _ = self.at(sizes_of(self.spec, batch, rows))
            given = given_batch(spec, batch, device, rows)
        return given

    def is_planned(self, batch: Batch, rows: Rows | None) -> bool:
        """Whether a batch has the planned sizes."""
        return self.spec.resized is None or sizes_of(self.spec, batch, rows) == self.planned

    def settled(self, batch: Batch, given: Given, device: torch.device) -> tuple[ProgramSpec, Engine, Given]:
        """What runs the batch that all ranks agree on. InputsError, on every rank, where rows of which only that told
        whose they are turn out to be none of the plan's on any."""
        form = None if given.form == "either" else given.form
        self.whole = form == "whole"
        if given.sizes.rows:
            return *self.at(sizes_of(self.spec, batch, form)), given
        return together(lambda: self.compared(batch, form, device))

    def compared(self, batch: Batch, form: Rows | None, device: torch.device) -> tuple[ProgramSpec, Engine, Given]:
        """A batch of which it is known now whether it is whole."""
        spec, engine = self.at(sizes_of(self.spec, batch, form))
        return spec, engine, given_batch(spec, batch, device, form)

    def at(self, sizes: BatchSizes) -> tuple[ProgramSpec, Engine]:
        """InputsError where the program doesn't run at that size, or the plan's memory isn't for it. A program that was
        made by hand, without a plan, is for its one size, with which ``given_batch`` compares."""
        if self.spec.resized is None:
            return self.made[self.planned]
        if sizes not in self.made:
            spec = replace(self.spec, lowered=program_of(self.spec, sizes))
            self.made[sizes] = spec, self.made[self.planned][1].resized(spec)
        return self.made[sizes]


def check_fed(accumulate: bool, planned: bool) -> None:
    """InputsError for a batch that a pipeline without a flush doesn't take."""
    if accumulate:
        cause = "the gradients of a pipeline without a flush are of batches before the one that it is given"
        raise InputsError("program.step(batch, accumulate=True)", cause, "give one larger batch, in microbatches")
    if not planned:
        cause = "in a pipeline without a flush it would be beside batches of the planned size"
        raise InputsError("a batch of another size", cause, "leave the last, shorter one out (drop_last)")
