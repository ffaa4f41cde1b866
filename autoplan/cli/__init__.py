"""The command line: ``autoplan plan``, ``what-if``, ``compare``, ``report``, ``verify``, ``rehearse``, ``measure``,
``explain``, ``seal``, ``diff``, ``trace``, ``config``, ``train``, ``devices``, ``checkpoint``.

This file declares the commands and their options. Each names the function that runs it, whose module is imported once
the arguments are read: help and mistakes take a tenth of a second. A user's mistake ends with one line on stderr and
status 2.

Order: `typed_words` (trainings and parallelisms as text), `loss` (the loss that ``--loss`` names), `progress` (a line
while something takes its time), `planning` (``plan``, ``what-if``, ``compare``), `exported` (what reads a folder),
`devices`, `train` (torchrun on one machine), `measure` (on ranks, and processes that are ranks), `checkpoint`
(``checkpoint verify``).
"""

import argparse
import sys
from collections.abc import Sequence

from autoplan.arguments.command_line import Parser, whole
from autoplan.arguments.values import EFFORTS, TRAINERS
from autoplan.deferred import deferred
from autoplan.errors import AutoplanError

__all__ = ["__version__", "main", "parser"]

__version__ = "0.1.0"

EXAMPLE = """\
examples:
  autoplan plan --model hf:llama-3-70b --cluster-spec "8x8 h100-sxm" --batch 512 --seq 8192
  autoplan plan --model hf:gpt2 --config n_layer=4 --cluster-spec "1x4 cpu" --batch 16 --seq 128 --export out/
  autoplan plan --model examples/mlp.py:make_model --cluster-spec "1x4 cpu" --parallelism dp=2,tp=2 --verify
  autoplan train out/ --steps 100               # or torchrun --nproc-per-node 4 out/train.py --steps 100
  autoplan measure out/                         # its steps here, beside the prediction
  autoplan rehearse out/                        # all of its ranks, at full size, without a device
  autoplan what-if out/ --cluster-spec "2x8 a100-sxm-80gb" --batch 64 --bandwidth 0.5
  autoplan compare hf:llama-3-8b "8x8 h100-sxm" "8x8 a100-sxm-80gb" "16x8 l40s" --batch 512 --seq 8192
"""
MODEL = "hf:NAME (llama, gpt2, llama-3-70b, …), a folder that save_pretrained wrote, or path/to/file.py:make_model"
CLUSTER = 'nodes x devices and a profile, "8x8 h100-sxm", or a .toml file'
VERBOSE = "the whole report: every collective and operator, what was searched"
SYSTEM = "a named system (ddp, zero3, …), or pinned fields: dp=2,tp=2; or what a report prints of a plan"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 where it went well, 2 with one line on stderr where the user has to mend something."""
    try:
        options = parser().parse_args(arguments)
        deferred(f"autoplan.cli.{options.command}")(options)
    except (AutoplanError, OSError) as error:
        print(f"autoplan: error: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="autoplan", description="Plan how a PyTorch model trains on a cluster, and write the sharded program.",
        epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"autoplan {__version__}")
    commands = top.add_subparsers(required=True, metavar="command", parser_class=Parser)
    plan = commands.add_parser("plan", help="plan a model for a cluster", epilog=EXAMPLE,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    plan.set_defaults(command="planning.plan_command")
    plan.add_argument("--model", required=True, help=MODEL)
    plan.add_argument("--cluster-spec", required=True, help=CLUSTER)
    plan.add_argument("--parallelism", default="auto", help=SYSTEM)
    add_request(plan)
    add_outputs(plan)
    plan.add_argument("--verify", action="store_true", help="compare the sharded program with one device, here")
    add_asking(commands)
    for name, command, text in (
        ("report", "exported.report_command", "print the report of an exported plan"),
        ("verify", "exported.verify_command", "compare an exported program with one device"),
        ("seal", "exported.seal_command", "take the edits in an exported plan's plan.json and program.py"),
    ):
        other = commands.add_parser(name, help=text)
        other.add_argument("folder", help="a folder that plan --export wrote")
        other.set_defaults(command=command)
        if name == "report":
            other.add_argument("--verbose", action="store_true", help=VERBOSE)
    explain = commands.add_parser("explain", help="what an exported plan chose for an operator or module, or gave up")
    explain.add_argument("folder", help="a folder that plan --export wrote")
    explain.add_argument("name", help="a module, weight or operator; or another plan: zero3, dp=2,tp=2")
    explain.set_defaults(command="exported.explain_command")
    rehearse = commands.add_parser("rehearse", help="run an exported program at full size, without a device")
    rehearse.set_defaults(command="exported.rehearse_command")
    rehearse.add_argument("folder", help="a folder that plan --export wrote")
    rehearse.add_argument("--ranks", default="classes", help="classes (one of each kind), all, or some: 0,17")
    rehearse.add_argument("--microbatches", type=whole(1), help="that are run; else enough to fill the schedule")
    rehearse.add_argument("--json", metavar="FILE", help="write what was found there, too")
    train = commands.add_parser("train", help="run an exported program's train.py on this machine, as torchrun does")
    train.set_defaults(command="train.train_command")
    train.add_argument("--max-restarts", type=whole(0), default=0, help="times that failed processes are started anew")
    train.add_argument("folder", help="a folder that plan --export wrote")
    train.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="what train.py takes: --steps 100, say")
    measure = commands.add_parser("measure", help="run steps of an exported plan here, beside the prediction")
    measure.set_defaults(command="measure.measure_command")
    measure.add_argument("folder", help="a folder that plan --export wrote")
    measure.add_argument("--steps", type=whole(1), default=5, help="that are timed, after three that warm up")
    measure.add_argument("--trace", metavar="FILE", help="leave the first rank's profile there: see trace --measured")
    measure.add_argument("--json", metavar="FILE", help="write the result there, too")
    devices = commands.add_parser("devices", help="list the devices and networks that are known, with their figures")
    devices.add_argument("name", nargs="?", help="a device, a fabric or a profile's path: all of its figures")
    devices.set_defaults(command="devices.devices_command")
    diff = commands.add_parser("diff", help="what changed from one exported plan to another, as Markdown")
    diff.add_argument("before", help="a folder that plan --export wrote")
    diff.add_argument("after", help="another")
    diff.set_defaults(command="exported.diff_command")
    trace = commands.add_parser("trace", help="write the predicted step of an exported plan as a trace for Perfetto")
    trace.add_argument("folder", help="a folder that plan --export wrote")
    trace.add_argument("file", help="where to write it: step.json, or step.json.gz")
    trace.add_argument("--measured", metavar="FILE", help="a trace of torch.profiler, put beside it")
    trace.set_defaults(command="exported.trace_command")
    scaling = commands.add_parser("scaling", help="how an exported plan's step scales with devices and bandwidth")
    scaling.add_argument("folder", help="a folder that plan --export wrote")
    scaling.set_defaults(command="exported.scaling_command")
    config = commands.add_parser("config", help="an exported plan as another trainer's configuration, and its price")
    config.add_argument("folder", help="a folder that plan --export wrote")
    config.add_argument("kind", choices=TRAINERS, help="the trainer")
    config.add_argument("--write", metavar="FILE", help="write it there instead of printing it")
    config.set_defaults(command="exported.config_command")
    add_checkpoint(commands)
    return top


def add_asking(commands: argparse._SubParsersAction) -> None:
    """``what-if`` and ``compare``."""
    what_if = commands.add_parser("what-if", help="plan an exported plan's model for something else, without tracing")
    what_if.set_defaults(command="planning.what_if_command")
    what_if.add_argument("folder", help="a folder that plan --export wrote")
    what_if.add_argument("--cluster-spec", help=CLUSTER)
    what_if.add_argument("--batch", type=int, help="rows of one optimizer step, over all devices")
    what_if.add_argument("--seq", type=int, help="tokens in a row")
    what_if.add_argument("--bandwidth", help="times the bandwidth: 2 of the network, or nic:0.5,node:2 by links")
    what_if.add_argument("--parallelism", help=f"{SYSTEM}; auto frees what was pinned")
    what_if.add_argument("--effort", choices=EFFORTS, help="full, or fast for a quick answer")
    add_outputs(what_if)
    compare = commands.add_parser("compare", help="plan one model for several clusters, as a table")
    compare.set_defaults(command="planning.compare_command")
    compare.add_argument("model", help=f"{MODEL}; or a folder that plan --export wrote")
    compare.add_argument("cluster_specs", nargs="+", metavar="cluster_spec", help=CLUSTER)
    compare.add_argument("--parallelism", help=SYSTEM)
    add_request(compare)


def add_request(command: argparse.ArgumentParser) -> None:
    """The model's settings, its batch, and how it trains."""
    add = command.add_argument
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model; repeatable")
    add("--batch", type=int, help="rows of one optimizer step, over all devices")
    add("--seq", type=int, help="tokens in a row")
    add("--loss", metavar="NAME", help="of torch.nn.functional, such as cross_entropy, or path/to/file.py:function")
    add("--training", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as in precision=bf16-mixed")
    add("--effort", choices=EFFORTS, default="full", help="fast: a quick answer with fewer alternatives")


def add_outputs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--export", metavar="DIR", help="write plan.json, program.py, train.py and report.html there")
    command.add_argument("--rehearse", action="store_true", help="and rehearse it, at full size, without a device")
    command.add_argument("--scaling", action="store_true", help="and chart it over devices and bandwidth (8 searches)")
    command.add_argument("--explain", metavar="NAME", help="explain one operator or module instead of the report")
    command.add_argument("--verbose", action="store_true", help=VERBOSE)


def add_checkpoint(commands: argparse._SubParsersAction) -> None:
    """``checkpoint verify``."""
    checkpoint = commands.add_parser("checkpoint", help="look at what save_checkpoint wrote")
    actions = checkpoint.add_subparsers(required=True, metavar="action")
    verify = actions.add_parser("verify", help="compare every byte with its checksum")
    verify.add_argument("folder", help="a checkpoint, or a folder that holds step-<number>")
    verify.set_defaults(command="checkpoint.verify_checkpoint_command")
