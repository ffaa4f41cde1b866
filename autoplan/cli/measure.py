"""``autoplan measure``: an exported plan's steps beside what was predicted.

It starts this machine's processes. Where torchrun has started it, it is one of them: so a plan of several nodes is
measured.
"""

import argparse
import json
import os
from pathlib import Path

from autoplan.arguments.places import place_for
from autoplan.cli.progress import phase
from autoplan.ir.codec import encode
from autoplan.plan import load
from autoplan.runtime.elastic.launch import run_script


def measure_command(options: argparse.Namespace) -> None:
    if options.json and os.environ.get("RANK", "0") == "0":
        place_for(options.json)
    if "LOCAL_RANK" in os.environ:
        run_script(lambda: on_rank(options))
        return
    with phase("measuring: processes start, warm up, step"):
        found = load(options.folder).measure(steps=options.steps, trace=options.trace)
    print(found, end="")
    if options.json:
        Path(options.json).write_text(json.dumps(encode(found), indent=1) + "\n")


def on_rank(options: argparse.Namespace) -> None:
    """As one process of the plan's: from weights that are drawn or came with the plan, on random values."""
    plan = load(options.folder)
    with plan.program() as program:
        program.init_weights(None if program.spec.start.stored else 0)
        found = plan.measure(program, steps=options.steps, trace=options.trace)
        if program.rank == 0:
            print(found, end="", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(encode(found), indent=1) + "\n")
