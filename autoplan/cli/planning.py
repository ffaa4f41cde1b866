"""The commands that plan: ``plan``, ``what-if``, ``compare``."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from autoplan.api import parallelize
from autoplan.cli.loss import loss_named
from autoplan.cli.progress import phase
from autoplan.cli.typed_words import parallelism, training
from autoplan.cluster import read_factors
from autoplan.comparison import beside, compare, unchanged
from autoplan.errors import InputsError, PlanFileError, RehearsalError
from autoplan.export.folder import path_of
from autoplan.export.found import REHEARSAL, found_in
from autoplan.models.named import Request, resolve_model
from autoplan.plan import Plan, load
from autoplan.report.price_tables import phases_text


def plan_command(options: argparse.Namespace) -> None:
    check_outputs(options)
    request = resolve_model(options.model, options.config, options.batch, options.seq)
    for note in request.notes:
        print(note)
    how = {
        "loss_fn": loss_of(options, request),
        "training": training(options.training),
        "parallelism": parallelism(options.parallelism),
        "effort": options.effort,
    }
    with phase("planning: tracing the model, searching"):
        plan = parallelize(request.model, options.cluster_spec, request.example_inputs, **how)
    if request.weights is not None:
        plan = plan.starting_from(request.weights)
    tell(plan, options)
    if options.verify:
        print(f"\n{plan.verify()}")
    export(plan, options)


def check_outputs(options: argparse.Namespace) -> None:
    """Before anything is planned: PlanFileError where a plan couldn't be written to the folder; InputsError for an
    option of what is exported without a folder, and for one of the report where none is printed."""
    folder = options.export
    if options.verbose and options.explain is not None:
        raise InputsError("--verbose", "with --explain no report is printed", "leave out one of them")
    if folder is None:
        for name, what in (("rehearse", "what is exported is rehearsed"), ("scaling", "its charts are in report.html")):
            if getattr(options, name):
                raise InputsError(f"--{name}", what, "give --export, too")
        return
    target = path_of(folder)
    place = next((path for path in (target, *target.parents) if path.exists()), target)
    if not place.is_dir():
        raise PlanFileError(folder, f"{place} is a file", "give a folder to export to")
    try:  # not os.access, which grants root places where nothing can be made, such as /proc
        Path(tempfile.mkdtemp(prefix=".autoplan-", dir=place)).rmdir()
    except OSError:
        cause = f"nothing can be written in {place}"
        raise PlanFileError(folder, cause, "give a folder in a place of your own") from None


def loss_of(options: argparse.Namespace, request: Request) -> Callable | None:
    """What ``--loss`` names, before what the model's file defines."""
    return loss_named(options.loss) if options.loss else request.loss_fn


def tell(plan: Plan, options: argparse.Namespace) -> None:
    """The report, or the explanation that is asked for in its place."""
    asked = options.explain is not None
    print(plan.explain(options.explain) if asked else plan.report(verbose=options.verbose), end="")
    print(f"\n{phases_text(plan.search)}", file=sys.stderr)


def export(plan: Plan, options: argparse.Namespace) -> None:
    if options.export:
        folder = plan.export(options.export, rehearse=options.rehearse, scaling=options.scaling)
        script = "train.py" if (folder / "train.py").is_file() else "run.py"
        print(f"\nwrote {folder}: {start_text(plan, folder, script)}")
        told = found_in(folder, str(plan)).get("rehearsal") if options.rehearse else None
        if told is not None and not told["passed"]:
            raise RehearsalError(folder, "rehearsed, the program would not run as planned", f"see {folder / REHEARSAL}")
        if told is not None:
            print(f"rehearsed, it would run as planned: {folder / REHEARSAL}")
        elif script == "train.py":
            print(f"all of it at full size, on no device: autoplan rehearse {folder}")


def start_text(plan: Plan, folder: Path, script: str) -> str:
    """The command that runs an exported plan: of several nodes the one for each of them."""
    nodes, ranks = plan.record.cluster.nodes, plan.record.chosen.mesh.devices
    if nodes == 1:
        return f"torchrun --nproc-per-node {ranks} {folder}/{script}"
    scripts = f"{folder}/launch"
    return f"sh {scripts}/torchrun.sh HOST, on each of {nodes} nodes; for Slurm and Kubernetes see {scripts}"


def what_if_command(options: argparse.Namespace) -> None:
    """The plan that was and the one that would be, in two lines, then the latter's report."""
    check_outputs(options)
    before = load(options.folder)
    with phase("searching"):
        after = before.what_if(
            cluster_spec=options.cluster_spec,
            batch=options.batch,
            seq=options.seq,
            bandwidth=None if options.bandwidth is None else read_factors(options.bandwidth),
            parallelism=None if options.parallelism is None else parallelism(options.parallelism),
            effort=options.effort,
        )
    told = unchanged(before, after)
    print("\n".join(filter(None, (beside(("as planned", before), ("what if", after)), told, " "))).rstrip(" "))
    tell(after, options)
    export(after, options)


def compare_command(options: argparse.Namespace) -> None:
    how = {
        "training": training(options.training),
        "parallelism": None if options.parallelism is None else parallelism(options.parallelism),
        "effort": options.effort,
    }
    if is_plan(options.model):
        if options.loss:
            raise InputsError(f"--loss {options.loss}", "a plan's loss is what it was traced with", "leave it out")
        if options.config:
            cause = "the folder's plan has its model already"
            raise InputsError(f"--config {options.config[0]}", cause, "leave it out")
        plan = load(options.model)
        with phase(f"planning for {len(options.cluster_specs)} clusters"):
            table = compare(plan, options.cluster_specs, batch=options.batch, seq=options.seq, **how)
    else:
        request = resolve_model(options.model, options.config, options.batch, options.seq)
        how["loss_fn"] = loss_of(options, request)
        with phase(f"planning for {len(options.cluster_specs)} clusters"):
            table = compare(request.model, options.cluster_specs, request.example_inputs, **how)
    print(table)


def is_plan(text: str) -> bool:
    """Whether this is an exported plan's folder, or its plan.json."""
    return Path(text).suffix == ".json" or (Path(text) / "plan.json").is_file()
