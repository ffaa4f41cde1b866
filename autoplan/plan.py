"""A plan: what was chosen, why, and the program that it is."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from autoplan.arguments.keywords import keywords
from autoplan.arguments.synonyms import ARGUMENT_NAMES
from autoplan.arguments.values import is_whole
from autoplan.cluster import ClusterSpec
from autoplan.cluster.interval import interval_of
from autoplan.deferred import deferred
from autoplan.errors import AutoplanError, DoesNotFitError, InputsError, LaunchError, ParallelismError, PlanFileError
from autoplan.export.folder import OpenedPlan, opened, path_of, program_spec, values_in, write_folder
from autoplan.export.found import found_in, write_found
from autoplan.ir.choice import Alternative, Predicted, SearchReport
from autoplan.ir.codec import encode
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import program_of
from autoplan.models.pretrained import FOLDER as PRETRAINED
from autoplan.models.pretrained import pretrained_files, stored_files
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint
from autoplan.rules.extensions import check_exportable
from autoplan.runtime.elastic.launch import START_S, TIMEOUT_S
from autoplan.runtime.elastic.scaled_batch import KEEP
from autoplan.runtime.elastic.world_size import folder_for_world
from autoplan.targets import ExportedConfig, config_of, launchers

if TYPE_CHECKING:
    from autoplan.evaluation.proof import Given, prove
    from autoplan.export.perfetto import write_trace
    from autoplan.measurement import Measurement, measure
    from autoplan.rehearsal.outcome import Rehearsal
    from autoplan.rehearsal.rehearse import rehearse
    from autoplan.replan import Change, replan
    from autoplan.report.explain import alternative_text, asked_for, explain_text
    from autoplan.report.html import report_html
    from autoplan.report.screen import screen_text
    from autoplan.report.text_report import report_text
    from autoplan.report.words import headline
    from autoplan.runtime.data.microbatches import Batch
    from autoplan.runtime.inference.inference_program import InferenceProgram
    from autoplan.runtime.program import Program
    from autoplan.runtime.weights.start_values import starting_from
    from autoplan.runtime.weights.starting import check_start
    from autoplan.scaling import Scaling, scaling
    from autoplan.verify import ForwardVerification, Verification, verify
else:
    prove = deferred("autoplan.evaluation.proof.prove")
    write_trace = deferred("autoplan.export.perfetto.write_trace")
    measure = deferred("autoplan.measurement.measure")
    rehearse = deferred("autoplan.rehearsal.rehearse.rehearse")
    Change, replan = deferred("autoplan.replan.Change"), deferred("autoplan.replan.replan")
    alternative_text = deferred("autoplan.report.explain.alternative_text")
    asked_for = deferred("autoplan.report.explain.asked_for")
    explain_text = deferred("autoplan.report.explain.explain_text")
    headline = deferred("autoplan.report.words.headline")
    report_html = deferred("autoplan.report.html.report_html")
    report_text = deferred("autoplan.report.text_report.report_text")
    screen_text = deferred("autoplan.report.screen.screen_text")
    InferenceProgram = deferred("autoplan.runtime.inference.inference_program.InferenceProgram")
    Program = deferred("autoplan.runtime.program.Program")
    starting_from = deferred("autoplan.runtime.weights.start_values.starting_from")
    check_start = deferred("autoplan.runtime.weights.starting.check_start")
    scaling = deferred("autoplan.scaling.scaling")
    verify = deferred("autoplan.verify.verify")

ROUNDS = 4  # of planning what a trainer can say of the plan before; two or three end in what it can say


@dataclass(frozen=True)
class Plan:
    """How a model runs on a cluster, and at what price.

    record    everything that plan.json holds
    module    the user's model, where the plan was made in this process
    loss_fn   likewise
    opened    what was loaded, else None
    origin    where the plan was loaded from that this one is another of
    given     what was traced, where the plan was made in this process
    values    the folder that holds the values that training starts from, where they aren't ``module``'s
    """

    record: PlanRecord
    module: nn.Module | None = field(default=None, compare=False)
    loss_fn: Callable | None = field(default=None, compare=False)
    opened: OpenedPlan | None = field(default=None, compare=False)
    origin: Path | None = field(default=None, compare=False)
    given: Given | None = field(default=None, compare=False)
    values: Path | None = field(default=None, compare=False)

    @property
    def folder(self) -> Path | None:
        """Where the plan was loaded from."""
        return None if self.opened is None else self.opened.folder

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
        return self.opened.lowered if self.opened else program_of(self.record)

    def __str__(self) -> str:
        return headline(self.record)

    def __repr__(self) -> str:
        predicted = f"{self.predicted.step_time_s:.3g} s a step"
        return f"<Plan of {self.record.model.name} on {self.record.cluster}: {self}; {predicted}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the report."""
        return f"<pre>{html.escape(self.report())}</pre>"

    @keywords(InputsError)
    def report(self, *, verbose: bool = False) -> str:
        """What was chosen, why, and what else was priced, on a screen of 40 lines and 100 columns.

        verbose  all of it: every collective, every operator's layout, what was searched
        """
        return report_text(self.record) if verbose else screen_text(self.record)

    @keywords(InputsError)
    def explain(self, name: str) -> str:
        """One operator or module: its split, the alternatives, the price of each. Or a plan that wasn't taken: an
        alternative of the report by its name, a named system, or fields ("dp=2 tp=4"), planned now, beside this one.

        Raises AutoplanError, with the nearest names, where the model has no such one.
        """
        try:
            return explain_text(self.record, name)
        except AutoplanError:
            asked = asked_for(self.record, name) if isinstance(name, str) and name else None
            if asked is None:
                raise
        try:
            other = self.what_if(parallelism=asked, effort="fast")
        except (DoesNotFitError, ParallelismError) as error:
            return alternative_text(self.record, name, None, str(error))
        return alternative_text(self.record, name, other.record)

    @keywords(InputsError, {**ARGUMENT_NAMES, "batch_size": "batch"})
    def what_if(
        self,
        cluster_spec: ClusterSpec | str | Mapping | os.PathLike | None = None,
        batch: int | None = None,
        seq: int | None = None,
        bandwidth: float | Mapping[str, float] | None = None,
        parallelism: str | Parallelism | None = None,
        constraints: Sequence[Constraint] | None = None,
        training: Training | Inference | None = None,
        effort: str | None = None,
    ) -> Plan:
        """The plan for something else, searched anew without tracing the model again; what isn't given stays.

        cluster_spec  whatever ``ClusterSpec.of`` takes
        batch, seq   rows of one optimizer step, and tokens in a row: the traced graph is taken to that size
        bandwidth    how many times as wide the links are: 2.0 doubles the network between nodes, {"node": 1.0,
                     "nic": 0.5} names the links inside a node, the network cards, or an outer level
        parallelism, constraints, training, effort   as ``parallelize`` takes them; "auto" and () free what was pinned

        A plan of a folder answers too, without the module. Raises RescaleError where the graph doesn't say what its
        sizes would be, ParallelismError for what needs another trace, and whatever ``parallelize`` raises.
        """
        change = Change(cluster_spec, batch, seq, bandwidth, parallelism, constraints, training, effort)
        return replace(self, record=replan(self.record, change), opened=None, origin=self.folder or self.origin)

    @keywords(InputsError)
    def trace(self, path: str | os.PathLike, *, measured: str | os.PathLike | None = None) -> Path:
        """Writes the predicted step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing; returns its path.

        measured  what torch.profiler's ``export_chrome_trace`` wrote of a step: put beside it. InputsError where it
                  is no such trace
        """
        return write_trace(self.record, path, measured)

    def to_dict(self) -> dict:
        """The plan as plain data, as in plan.json."""
        parts = ("training", "model", "chosen", "alternatives", "search")
        step_s = self.record.chosen.predicted.step_time_s
        interval = encode(interval_of(self.record.cluster, step_s))
        return {"plan": str(self), "cluster": self.record.cluster.to_dict(), "interval": interval} | {
            name: encode(getattr(self.record, name)) for name in parts
        }

    @keywords(InputsError)
    def verify(
        self, *, seed: int = 0, raises: bool = True, batch: Batch | None = None
    ) -> Verification | ForwardVerification:
        """Runs the sharded program on local processes and compares it with one device.

        Loss, every gradient, and the parameters after three optimizer steps, in float64; of a plan of Inference() the
        result of the module in evaluation. One device runs the module as it was handed over, from its own values and in
        its own modes.
        A plan of another rule (local SGD, DiLoCo, gossip, PipeDream-2BW, stale servers, compressed gradients) is
        compared with one process that follows it.
        Without the model at hand replicas, which no one device is, are compared with gradients summed in every step.
        seed    of the weights, where the model has none, and of the batch
        raises  VerificationError where they differ; otherwise look at the result's ``passed``
        batch   by name or in order, for a model that can't compute with random values: floats are drawn normal,
                integers as small as what they index, booleans are True. InputsError where it can't
        """
        if not is_whole(seed):
            raise InputsError(f"seed={seed!r}", "a seed is a whole number", "give for example 0")
        return verify(self.record, self.module, self.loss_fn, seed=seed, raises=raises, given=batch)

    @keywords(InputsError)
    def rehearse(self, *, ranks: str = "classes", microbatches: int | None = None) -> Rehearsal:
        """Runs the program at full size without a device: everything but the values.

        The folder's own program.py and the runtime run one step and its update on a fake device, one rank of each class
        of ranks that differ in what they launch, each in a process of its own. Told are each class's peak memory beside
        the predicted, what stands then, where the host stops, and whether every collective meets its members, every
        message its receiver, and the order on the streams admits an end. ``verify`` compares values, at a small size;
        this all but values, at the full one.

        ranks         "classes"; "all"; or some, "0,17": whether all ranks meet isn't known then
        microbatches  that are run; None: enough to fill the schedule; memory is carried on to all of them
        RehearsalError where this torch takes no fake device, and for a plan of Inference(); InputsError for ranks or
        microbatches that the plan hasn't. A program that wouldn't run is told by the result: ``passed``, ``check()``.
        """
        if self.folder is not None:
            return rehearse(self.folder, ranks, microbatches)
        with tempfile.TemporaryDirectory(prefix="autoplan-rehearsal-") as folder:
            return rehearse(write_folder(self.record, Path(folder) / "out", str(self), {}), ranks, microbatches)

    @keywords(InputsError)
    def measure(
        self, program: Program | None = None, batch: Batch | None = None, *, steps: int = 5,
        trace: str | os.PathLike | None = None,
    ) -> Measurement:  # fmt: skip
        """Runs steps and sets them beside the prediction, part by part: compute, what is waited for over each axis, the
        bubble, the update; on accelerators memory. It says which part is most off.

        Three steps warm up, ``steps`` are timed, one more is profiled.
        program  this rank's, with weights: every rank calls it and gets the same result. These steps train. None: this
                 machine's processes run the plan, from weights that are drawn
        batch    as of ``program.step``; None: random values
        trace    where the first rank's profile is left, for ``trace(measured=)``
        LaunchError where this machine alone can't run the plan: its remedy starts ``autoplan measure`` on all nodes.
        """
        return measure(self.record, self.folder or self.export, program, batch, steps, trace)

    @keywords(InputsError)
    def export(self, folder: str | os.PathLike, *, rehearse: bool = False, scaling: bool = False) -> Path:
        """Writes plan.json, program.py, train.py and report.html; nothing where anything fails. A plan of Inference()
        has run.py in place of train.py. For several nodes launch/ starts it by torchrun, Slurm or Kubernetes.

        The model is traced in evaluation, too, so that ``program.evaluate`` knows what it computes there. Where the
        model holds values they are written beside the plan, to weights/, as they are now: train.py starts from them.
        A model of transformers brings its config.json, and the tokenizer's files of the folder that it was loaded
        from, into pretrained/; ``save_weights`` writes them beside the weights.
        rehearse  ``rehearse()`` it, too: rehearsal.json has what was found, and report.html shows it; RehearsalError
                  as there
        scaling   the curves of ``scaling()``, too: scaling.json, and as charts in report.html
        ExtensionError where the plan's ranks couldn't import an operator of your own. PlanFileError where a file would
        be replaced that no export wrote, or that was edited since; an edited train.py stays, with a warning.
        """
        check_exportable(self.record.extensions)
        found = {"rehearsal": self.rehearse().to_dict()} if rehearse else {}
        found |= {"scaling": self.scaling().to_dict()} if scaling else {}
        page = report_html(self.record, found_in(path_of(folder), str(self)) | found)
        extra: dict[str, str | bytes] = {"report.html": page}
        script = "run.py" if isinstance(self.record.training, Inference) else "train.py"
        extra |= launchers(self.record.cluster, script)
        came_along = pretrained_files(self.module) or stored_files(self.folder or self.origin)
        extra |= {f"{PRETRAINED}/{name}": content for name, content in came_along.items()}
        record = self.record if self.given is None else replace(self.record, evaluable=prove(self.given))
        values = self.values if self.module is None else self.module
        values = values if record.start.stored else None
        written = write_folder(record, folder, str(self), extra, values)
        write_found(written, found)
        return written

    def scaling(self) -> Scaling:
        """How the step of this batch scales: over a quarter to four times the devices, and over links a quarter to
        four times as wide (the network between nodes; of one node the links inside it).

        Each point is a plan of its own by the quick search (``effort="fast"``), with what was pinned. What doesn't fit
        says why. About eight searches: seconds for small models, minutes for large clusters.
        """
        return scaling(self.record)

    @keywords(InputsError)
    def export_config(self, kind: str) -> ExportedConfig:
        """The plan as the configuration of another trainer: "megatron" and "torchtitan" (flags), "deepspeed"
        (JSON), "accelerate" (YAML), "nanotron" (YAML).

        What the trainer can't express is told in ``lost``. What is left is planned again on this cluster with all that
        the trainer decides pinned; ``text`` says that plan, and ``costs`` what the rest was worth. InputsError for
        another trainer, ParallelismError for a plan that doesn't train.
        """
        config, planned, pinned = config_of(self.record, kind), self, None
        lost = config.lost
        try:
            for _ in range(ROUNDS):
                if config.parallelism == pinned:
                    break
                pinned = config.parallelism
                planned = planned.what_if(parallelism=pinned, constraints=(), effort="fast")
                config = config_of(planned.record, kind)
                lost = tuple(dict.fromkeys((*lost, *config.lost)))
        except (DoesNotFitError, ParallelismError) as error:
            return replace(config, lost=lost, planned_s=self.predicted.step_time_s, why=str(error))
        replanned_s = planned.predicted.step_time_s
        return replace(config, lost=lost, planned_s=self.predicted.step_time_s, replanned_s=replanned_s)

    def starting_from(self, folder: str | os.PathLike) -> Plan:
        """The same plan, whose training starts from the safetensors in a folder; WeightsError where they can't be read.

        They aren't copied: ``export`` notes the folder and each file's hash, and other bytes are refused.
        """
        start = starting_from(self.record.start, Path(folder))
        return replace(self, record=replace(self.record, start=start))

    def check_start(
        self, weights: str | os.PathLike | None = None, checkpoints: str | os.PathLike | None = None
    ) -> None:
        """WeightsError where training has nothing to start from: asked before any process waits for another.

        weights      what is to be loaded
        checkpoints  a folder that may hold a ``step-<number>`` to go on from
        """
        check_start(self.record.model.name, self.record.start, weights, checkpoints)

    def at_world_size(self, timeout_s: float = START_S, batch: str = KEEP) -> Plan:
        """This plan, or, where torchrun started another number of processes, one for these: elastic training.

        It is the same model and training, searched anew on as many devices by the first process of each node, and
        exported into this plan's folder, elastic/, once. Pins that don't suit so many are given up, which stderr tells.
        Checkpoints of either plan go on in the other. LaunchError where there is no plan for so many.

        timeout_s  longest that a process waits for the one that plans
        batch      "keep": the rows of a step stay; "scale": those of a rank do, and a step has as many times more
        """
        if self.folder is None:
            raise LaunchError("plan.at_world_size()", "this plan has no folder yet", "export it and load the folder")
        folder = folder_for_world(self.folder, self.record.chosen.mesh.devices, timeout_s, batch)
        return self if folder == self.folder else load(folder)

    @keywords(InputsError)
    def program(self, timeout_s: float = TIMEOUT_S) -> Program:
        """The program of a loaded plan on this rank; LaunchError where the number of processes is another.

        Of a plan of Inference() an InferenceProgram: ``program(batch)`` is the model's result, and what belongs to
        training is a ForwardOnlyError.

        timeout_s  after which a rank that hangs is named and all end
        """
        if self.opened is None:
            raise LaunchError(
                "plan.program()", "this plan has no folder yet", "export it, then autoplan.load(folder).program()"
            )
        spec, module = program_spec(self.record, self.folder, self.lowered), self.opened.module()
        if spec.forward_only:
            return InferenceProgram(spec, module, timeout_s)  # type: ignore[return-value]
        return Program(spec, module, timeout_s, pretrained=self.opened.folder / PRETRAINED)


@keywords(PlanFileError)
def load(folder: str | os.PathLike) -> Plan:
    """The plan of an exported folder; PlanFileError where it isn't one, is damaged, or was edited: ``autoplan seal``
    takes an edit that was made on purpose.

    The modules that define operators of your own are imported; ExtensionError where they can't be. Nothing else in the
    folder runs here; program.py does in ``plan.program()``.
    """
    found = opened(folder)
    return Plan(found.record, opened=found, values=values_in(found.folder))
