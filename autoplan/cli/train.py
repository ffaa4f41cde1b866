"""``autoplan train``: the torchrun of one machine, whose errors are those of train.py alone."""

import argparse
import logging
import os
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from autoplan.errors import LaunchError, PlanFileError
from autoplan.export.folder import on_processors
from autoplan.plan import load

TOLD = 2  # the exit status of a process that has told a user's mistake (runtime.elastic.launch.run_script)
SCRIPTS = ("train.py", "run.py")
RESTARTS = "--max-restarts"


def ranks_here(folder: str) -> int:
    """How many processes the plan in a folder has, all of them on this machine. Nodes of processors may be one."""
    record = load(folder).record
    cluster, ranks = record.cluster, record.chosen.mesh.devices
    if cluster.nodes > 1 and not on_processors(cluster):
        cause = f"the plan has {ranks} ranks on {cluster.nodes} nodes, and autoplan train starts those of one machine"
        raise LaunchError(folder, cause, f"run {folder}/launch/torchrun.sh HOST on each node")
    return ranks


def train_command(options: argparse.Namespace) -> None:
    """Starts as many processes as the plan has devices; LaunchError where one ended without saying why, and for a plan
    of several nodes' accelerators, which one machine hasn't got.

    torchrun itself ends with a traceback of its own whenever a process fails, and a process can't keep it from that.
    """
    check_order(options)
    told_once = bool({"-h", "--help"} & set(options.rest))  # by one process, not by each
    ranks = 1 if told_once else ranks_here(options.folder)
    script = next((path for name in SCRIPTS if (path := Path(options.folder) / name).is_file()), None)
    if script is None:
        raise PlanFileError(options.folder, "there is no train.py", "export the plan again")
    for name in ("torch.distributed.elastic", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it tells of each process that it ends
    given = ["--nproc-per-node", str(ranks), "--max-restarts", str(options.max_restarts), str(script), *options.rest]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it, which says so in four lines
    try:
        torchrun.run(torchrun.parse_args(given))
    except SignalException as signalled:
        raise SystemExit(128 + signalled.sigval) from None
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode == TOLD:
            raise SystemExit(TOLD) from None
        cause = f"it ended with exit status {failure.exitcode}"
        raise LaunchError(f"rank {rank} of {script}", cause, "see what it said above") from None


def check_order(options: argparse.Namespace) -> None:
    """LaunchError for an option of this command behind the folder, where options are train.py's."""
    misplaced = next((word for word in options.rest if word.partition("=")[0] == RESTARTS), None)
    if misplaced is not None:
        cause = "what follows the folder is handed to train.py, which has no such option"
        raise LaunchError(misplaced, cause, f"write it before: autoplan train {RESTARTS} N {options.folder}")
