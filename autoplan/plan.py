"""A plan: what was chosen, why, and the program that it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from autoplan.ask import Change, again
from autoplan.cluster import ClusterSpec
from autoplan.codec import encode
from autoplan.errors import LaunchError
from autoplan.extensions import check_exportable
from autoplan.folder import program_module, program_spec, read_folder, write_folder
from autoplan.options import Inference, Parallelism, Training
from autoplan.record import PlanRecord
from autoplan.report import explain_text, headline, report_html, report_text
from autoplan.runtime.batches import Batch
from autoplan.runtime.launch import TIMEOUT_S
from autoplan.runtime.program import Program
from autoplan.search.choice import Alternative, Predicted, SearchReport
from autoplan.search.constraints import Constraint
from autoplan.typed import Lowered
from autoplan.verify import Verification, verify


@dataclass(frozen=True)
class Plan:
    """How a model runs on a cluster, and at what price.

    record    everything that plan.json holds
    module    the user's model, where the plan was made in this process
    loss_fn   likewise
    folder    where the plan was loaded from, else None
    """

    record: PlanRecord
    module: nn.Module | None = field(default=None, compare=False)
    loss_fn: Callable | None = field(default=None, compare=False)
    folder: Path | None = None

    @property
    def predicted(self) -> Predicted:
        """step_time_s, tokens_per_s, mfu, peak_bytes for each stage (rank of several), bubble_fraction, collectives."""
        return self.record.chosen.predicted

    @property
    def parallelism(self) -> Parallelism:
        """The parallelism that was chosen, every field filled."""
        return self.record.chosen.parallelism

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Priced and ranked, those that don't fit included, with by how much."""
        return self.record.alternatives

    @property
    def search(self) -> SearchReport:
        """Seconds by phase, variables, constraints, optimality_gap."""
        return self.record.search

    @property
    def lowered(self) -> Lowered:
        """The typed program: every value with its layout."""
        return self.record.lowered()

    def __str__(self) -> str:
        return headline(self.record)

    def report(self) -> str:
        """What was chosen, why, and what else was priced."""
        return report_text(self.record)

    def explain(self, name: str) -> str:
        """One operator or module: its split, the alternatives, the price of each.

        Raises AutoplanError, with the nearest names, where the model has no such one.
        """
        return explain_text(self.record, name)

    def what_if(
        self,
        cluster: ClusterSpec | str | Mapping | os.PathLike | None = None,
        batch: int | None = None,
        seq: int | None = None,
        bandwidth: float | Mapping[str, float] | None = None,
        parallelism: str | Parallelism | None = None,
        constraints: Sequence[Constraint] | None = None,
        training: Training | Inference | None = None,
        effort: str | None = None,
    ) -> Plan:
        """The plan for something else, searched anew without tracing the model again; what isn't given stays.

        cluster      whatever ``ClusterSpec.of`` takes
        batch, seq   rows of one optimizer step, and tokens in a row: the traced graph is taken to that size
        bandwidth    how many times as wide the links are: 2.0 doubles the network between nodes, {"node": 1.0,
                     "nic": 0.5} names the links inside a node, the network cards, or an outer level
        parallelism, constraints, training, effort   as ``parallelize`` takes them; "auto" and () free what was pinned

        A plan of a folder answers too, without the module. Raises RescaleError where the graph doesn't say what its
        sizes would be, ParallelismError for what needs another trace, and whatever ``parallelize`` raises.
        """
        change = Change(cluster, batch, seq, bandwidth, parallelism, constraints, training, effort)
        return Plan(again(self.record, change), module=self.module, loss_fn=self.loss_fn)

    def to_dict(self) -> dict:
        """The plan as plain data, as in plan.json."""
        parts = ("training", "model", "chosen", "alternatives", "search")
        return {"plan": str(self), "cluster": self.record.cluster.to_dict()} | {
            name: encode(getattr(self.record, name)) for name in parts
        }

    def verify(self, *, seed: int = 0, raises: bool = True, batch: Batch | None = None) -> Verification:
        """Runs the sharded program on local processes and compares it with one device.

        Loss, every gradient, and the parameters after three optimizer steps, in float64. One device runs the module as
        it was handed over, from its own values and in its own modes.
        An asynchronous plan, local SGD or PipeDream-2BW, is compared with one process that follows its rule; local SGD
        without the model at hand, whose replicas no one device is, with gradients summed in every step.
        seed    of the weights, where the model has none, and of the batch
        raises  VerificationError where they differ; otherwise look at the result's ``passed``
        batch   by name or in order, for a model that can't compute with random values: floats are drawn normal,
                integers as small as what they index, booleans are True. InputsError where it can't
        """
        return verify(self.record, self.module, self.loss_fn, seed=seed, raises=raises, given=batch)

    def export(self, folder: str | os.PathLike) -> Path:
        """Writes plan.json, program.py, train.py and report.html; nothing where anything fails.

        ExtensionError where the plan's ranks couldn't import an operator of your own.
        """
        check_exportable(self.record.extensions)
        html = report_html(self.record)
        return write_folder(self.record, folder, str(self), {"report.html": html})

    def program(self, timeout_s: float = TIMEOUT_S) -> Program:
        """The program of a loaded plan on this rank; LaunchError where the number of processes is another.

        timeout_s  after which a rank that hangs is named and all end
        """
        if self.folder is None:
            raise LaunchError(
                "plan.program()", "this plan has no folder yet", "export it, then autoplan.load(folder).program()"
            )
        return Program(program_spec(self.record), program_module(self.folder), timeout_s)


def load(folder: str | os.PathLike) -> Plan:
    """The plan of an exported folder; PlanFileError where it isn't one, or was edited into nonsense.

    The modules that define operators of your own are imported; ExtensionError where they can't be.
    """
    return Plan(read_folder(folder), folder=Path(folder))
