"""The commands that read an exported folder."""

import argparse
import json
import sys
from pathlib import Path

from autoplan.arguments.places import place_for
from autoplan.cli.progress import phase
from autoplan.deferred import deferred
from autoplan.errors import RehearsalError
from autoplan.export.folder import seal_folder
from autoplan.export.found import Found, found_in, put_report, write_found
from autoplan.export.owned_files import PROGRAM
from autoplan.plan import Plan, load

difference = deferred("autoplan.difference.difference")
program_text = deferred("autoplan.emit.sized_program.program_text")
report_html = deferred("autoplan.report.html.report_html")


def report_command(options: argparse.Namespace) -> None:
    print(load(options.folder).report(verbose=options.verbose), end="")


def explain_command(options: argparse.Namespace) -> None:
    plan = load(options.folder)
    with phase(f"pricing {options.name} beside the plan"):
        said = plan.explain(options.name)
    print(said, end="")


def diff_command(options: argparse.Namespace) -> None:
    print(difference(load(options.before), load(options.after)), end="")


def trace_command(options: argparse.Namespace) -> None:
    path = load(options.folder).trace(options.file, measured=options.measured)
    print(f"wrote {path}: open it at https://ui.perfetto.dev, or in chrome://tracing")


def config_command(options: argparse.Namespace) -> None:
    """The configuration, and on stderr what it lost."""
    file = options.write and place_for(options.write)
    with phase(f"planning what {options.kind} can say"):
        found = load(options.folder).export_config(options.kind)
    if file:
        file.write_text(found.text)
    else:
        print(found.text, end="")
    print(found, file=sys.stderr)


def rehearse_command(options: argparse.Namespace) -> None:
    """RehearsalError, after what was found is printed, where the program wouldn't run as planned."""
    plan, file = load(options.folder), options.json and place_for(options.json)
    found = plan.rehearse(ranks=options.ranks, microbatches=options.microbatches)
    print(found)
    if Path(options.folder).is_dir() and found.together.mismatches is not None:
        add_to_report(plan, Path(options.folder), {"rehearsal": found.to_dict()})
    if file:
        file.write_text(json.dumps(found.to_dict(), indent=1))
    if not found.passed:
        raise RehearsalError(options.folder, "the program would not run as planned", "see what is printed above")


def scaling_command(options: argparse.Namespace) -> None:
    """The curves as tables; as charts they go into the folder's report.html."""
    plan = load(options.folder)
    with phase("planning for fewer and more devices, and other bandwidths"):
        found = plan.scaling()
    print(found)
    if Path(options.folder).is_dir():
        add_to_report(plan, Path(options.folder), {"scaling": found.to_dict()})


def add_to_report(plan: Plan, folder: Path, found: Found) -> None:
    """Writes what was found since the export, and shows it in report.html, unless that was edited."""
    write_found(folder, found)
    told = put_report(folder, report_html(plan.record, found_in(folder, str(plan))))
    if told:
        print(f"{folder / 'report.html'} shows it", file=sys.stderr)


def seal_command(options: argparse.Namespace) -> None:
    changed = seal_folder(options.folder)
    print(f"sealed {options.folder}: {', '.join(changed)}" if changed else f"{options.folder} was as it was exported")


def verify_command(options: argparse.Namespace) -> None:
    """Of the plan's own program, which a folder's program.py no longer is once it was edited: that is told."""
    plan = load(options.folder)
    edited = Path(options.folder).is_dir() and program_of(plan) != program_text(plan.record, str(plan)).encode()
    print(plan.verify())
    if edited:
        told = "it isn't what is compared: it was edited, or another version wrote it; autoplan rehearse runs it"
        print(f"autoplan: {Path(options.folder) / PROGRAM}: {told}", file=sys.stderr)


def program_of(plan: Plan) -> bytes:
    """The program.py of an exported folder; PlanFileError where there is none."""
    assert plan.opened is not None
    return plan.opened.program_text()
