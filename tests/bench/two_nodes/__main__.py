"""Every named system on two nodes: it trains there, saves, is started again and goes on, as on one node.

Two nodes are made of one machine by a tool that joins two network namespaces by a slow link; torchrun runs in each.
All trainings on nodes of one size share three starts of torchrun. Then train.py itself, in which ranks are killed; and
step times, predicted and measured, of gradients that are summed or pushed to servers.

    python -m tests.bench.two_nodes --two-nodes PATH [--write docs/appendix/two_nodes.md] [--system NAME]
        [--no-trainings] [--no-script] [--no-steps] [--keep DIR]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from autoplan.search.space.systems import SYSTEMS
from tests.bench.live.clusters import TWO_NODES, Cluster, Missing
from tests.bench.two_nodes.cases import PINS, SIZES, Case, all_cases
from tests.bench.two_nodes.document import document
from tests.bench.two_nodes.script import kills
from tests.bench.two_nodes.steps import PLANS, section, timed
from tests.bench.two_nodes.trainings import RATE, Row, Trainings, folder_of, one_device, say
from tests.kill.case import Outcome

SCRIPT = "script"  # folder of train.py's runs


def arguments() -> argparse.Namespace:
    described = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.bench.two_nodes", description=described)
    parser.add_argument("--two-nodes", type=Path, default=Path(os.environ.get("TWO_NODES", TWO_NODES)), metavar="PATH",
                        help="the tool that makes two nodes of one machine")  # fmt: skip
    parser.add_argument("--system", action="append", choices=[*SYSTEMS, *PINS], help="only this one (repeatable)")
    parser.add_argument("--steps", action="append", choices=list(PLANS), help="step times of this alone (repeatable)")
    parser.add_argument("--no-trainings", action="store_true", help="without the table of trainings")
    parser.add_argument("--no-script", action="store_true", help="without train.py and its kills")
    parser.add_argument("--no-steps", action="store_true", help="without step times")
    parser.add_argument("--write", type=Path, help="the document that is written; parts that don't run stay")
    parser.add_argument("--keep", type=Path, help="folder for plans, checkpoints and logs, with none of an "
                        "earlier run; a profile that it has under steps/ is taken. Else a temporary one")  # fmt: skip
    return parser.parse_args()


def trained(wanted: Sequence[Case], root: Path, tool: Path) -> list[Row]:
    """The rows of the cases, in their order."""
    references = {model: one_device(model) for model in dict.fromkeys(case.model for case in wanted)}
    rows: dict[Case, Row] = {}
    for processes in SIZES:
        here = [case for case in wanted if case.processes == processes]
        if here:
            trainings = Trainings(processes, root, tool)
            for case in here:
                trainings.export(case)
            trainings.run()
            rows |= {case: trainings.row(case, references) for case in here}
    return [rows[case] for case in wanted]


def scripts(root: Path, tool: Path) -> list[Outcome]:
    outcomes = []
    for event in kills(root, tool, RATE):
        say(str(event))
        outcomes += [event] if isinstance(event, Outcome) else []
    return outcomes


def used(root: Path) -> list[str]:
    """What an earlier run left there: its checkpoints and losses would be taken for those of this one's plans.

    Step times leave nothing that is read but a profile, which is meant to be.
    """
    parts = [*(folder_of(processes) for processes in SIZES), SCRIPT]
    return [part for part in parts if (root / part).exists()]


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    began = time.perf_counter()
    tool = options.two_nodes.resolve()
    try:
        Cluster("two nodes", 2, 2, RATE).check(tool)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    if options.keep and (left := used(options.keep)):
        print(f"{options.keep}: an earlier run left {', '.join(left)} there. Remove them, or name another folder.",
              file=sys.stderr)  # fmt: skip
        return 2
    systems = () if options.no_trainings else options.system or (*SYSTEMS, *PINS)
    wanted = [case for case in all_cases() if case.system in systems]
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.keep or Path(temporary)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        rows = trained([case for case in wanted if case.processes], root, tool)
        outcomes = [] if options.no_script else scripts(root / SCRIPT, tool)
        load = os.getloadavg()[0]
        times = [] if options.no_steps else timed(root / "steps", tool, say, options.steps or ())
    before = options.write.read_text() if options.write and options.write.exists() else ""
    text = document(rows, [case for case in wanted if not case.processes], outcomes, section(times, load), before)
    say(f"{text}\n{time.perf_counter() - began:.0f} s in all")
    if options.write:
        options.write.write_text(text)
    return 0 if all(row.passed for row in rows) and not any(o.different for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
