"""The command line: ``autoplan plan``, ``autoplan report``, ``autoplan verify``, ``autoplan devices``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields

from autoplan.api import parallelize
from autoplan.cluster import catalog_text, figures_text
from autoplan.errors import AutoplanError
from autoplan.models import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan, load
from autoplan.report import phases_text
from autoplan.values import parse_settings

# what the fields of Parallelism, all None by default, hold
FIELDS: Mapping[str, object] = {
    "dp": 1, "tp": 1, "pp": 1, "zero": 0, "micro_batch": 1, "schedule": "", "virtual_stages": 1, "recompute": "",
    "sequence_parallel": False, "offload": "", "tensor": "", "tensor_system": "",
}  # fmt: skip
EXAMPLE = """\
examples:
  autoplan plan --model hf:llama-3-70b --cluster "8x8 h100-sxm" --batch 512 --seq 8192 --training precision=bf16-mixed
  autoplan plan --model hf:llama --config num_hidden_layers=4 --cluster "1x4 cpu" --batch 16 --seq 128 --export out/
  autoplan plan --model examples/mlp.py:make_model --cluster "1x4 cpu" --parallelism dp=2,tp=2 --verify
  torchrun --nproc-per-node 4 out/train.py
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 where it went well, 2 with one line on stderr where the user has to mend something."""
    options = parser().parse_args(arguments)
    try:
        options.command(options)
    except (AutoplanError, OSError) as error:
        print(f"autoplan: error: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="autoplan", description="Plan how a PyTorch model trains on a cluster, and write the sharded program.",
        epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = top.add_subparsers(required=True, metavar="command")
    plan = commands.add_parser("plan", help="plan a model for a cluster", epilog=EXAMPLE,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    plan.set_defaults(command=plan_command)
    add = plan.add_argument
    add("--model", required=True, help="hf:NAME (llama, gpt2, bert, vit, llama-3-70b, …) or path/to/file.py:make_model")
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model; repeatable")
    add("--cluster", required=True, help='nodes x devices and a profile, "8x8 h100-sxm", or a .toml file')
    add("--batch", type=int, help="rows of one optimizer step, over all devices")
    add("--seq", type=int, help="tokens in a row")
    add("--training", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as in precision=bf16-mixed")
    add("--parallelism", default="auto", help="a named system (ddp, zero3, …), or pinned fields: dp=2,tp=2")
    add("--export", metavar="DIR", help="write plan.json, program.py, train.py and report.html there")
    add("--verify", action="store_true", help="compare the sharded program with one device, on this machine")
    add("--explain", metavar="NAME", help="explain one operator or module instead of printing the report")
    for name, command, text in (
        ("report", report_command, "print the report of an exported plan"),
        ("verify", verify_command, "compare an exported program with one device"),
    ):
        other = commands.add_parser(name, help=text)
        other.add_argument("folder", help="a folder that plan --export wrote")
        other.set_defaults(command=command)
    devices = commands.add_parser("devices", help="list the devices and networks that are known, with their figures")
    devices.add_argument("name", nargs="?", help="a device, a fabric or a profile's path: all of its figures")
    devices.set_defaults(command=devices_command)
    return top


def plan_command(options: argparse.Namespace) -> None:
    request = resolve_model(options.model, options.config, options.batch, options.seq)
    plan = parallelize(
        request.model,
        options.cluster,
        request.example_inputs,
        loss_fn=request.loss_fn,
        training=training(options.training),
        parallelism=parallelism(options.parallelism),
    )
    print(plan.explain(options.explain) if options.explain else plan.report(), end="")
    print(f"\n{phases_text(plan.search)}", file=sys.stderr)
    if options.verify:
        print(f"\n{verified(plan)}")
    if options.export:
        folder = plan.export(options.export)
        ranks = plan.record.chosen.mesh.devices
        print(f"\nwrote {folder}: torchrun --nproc-per-node {ranks} {folder}/train.py")


def report_command(options: argparse.Namespace) -> None:
    print(load(options.folder).report(), end="")


def devices_command(options: argparse.Namespace) -> None:
    print(figures_text(options.name) if options.name else catalog_text(), end="")


def verify_command(options: argparse.Namespace) -> None:
    print(verified(load(options.folder)))


def verified(plan: Plan) -> str:
    """The result of ``plan.verify()``, which raises where the program differs from one device."""
    return str(plan.verify())


def training(settings: Sequence[str]) -> Training | None:
    """Training with the given fields; None where none are given, so that the cluster's own precision is taken."""
    defaults = {field.name: getattr(Training(), field.name) for field in fields(Training)}
    given = parse_settings(settings, defaults, "--training")
    return Training(**given) if given else None  # type: ignore[arg-type]


def parallelism(text: str) -> str | Parallelism:
    """A named system's name, or a Parallelism of "dp=2,tp=2"."""
    if "=" not in text:
        return text
    settings = parse_settings(text.split(","), FIELDS, "--parallelism")
    if "tensor" in settings:
        settings["tensor"] = tuple(int(size) for size in re.findall(r"\d+", str(settings["tensor"])))
    return Parallelism(**settings)  # type: ignore[arg-type]
