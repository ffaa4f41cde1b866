"""The clusters that a machine without any can be: processes on one node, or on two joined by a slow link."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TWO_NODES = ROOT.parent / "shared" / "tools" / "two-nodes"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": str(ROOT)}


class Missing(Exception):
    """What a cluster needs isn't there; the message says what and how to get it."""


@dataclass(frozen=True)
class Cluster:
    """``nodes`` nodes of ``processes`` processes each.

    rate  of the link between nodes, in tc's notation; None where there is one node
    """

    name: str
    nodes: int
    processes: int
    rate: str | None = None

    @property
    def devices(self) -> int:
        return self.nodes * self.processes

    def start(self, arguments: Sequence[str], tool: Path, limit_s: int) -> None:
        """torchrun with these arguments (a script and its own, or -m and a module) on every node."""
        command = [*self.command(tool, limit_s), *arguments]
        environment = os.environ | ENVIRONMENT | {"TORCHRUN": str(torchrun())}
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=limit_s + 60)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command)

    def command(self, tool: Path, limit_s: int) -> list[str]:
        if self.rate is None:
            return [str(torchrun()), "--standalone", "--nproc-per-node", str(self.processes)]
        return [str(tool), "-r", self.rate, "-p", str(self.processes), "-t", str(limit_s), "--"]

    def check(self, tool: Path) -> None:
        """Missing, where the cluster can't be made here."""
        if self.rate is not None and not tool.is_file():
            raise Missing(f"{tool} is missing: it makes two nodes of one machine; name its place with --two-nodes")


def torchrun() -> Path:
    """The one beside this interpreter."""
    beside = Path(sys.executable).with_name("torchrun")
    found = beside if beside.is_file() else Path(shutil.which("torchrun") or "torchrun")
    return found


CLUSTERS = (Cluster("one node", 1, 4), Cluster("two nodes", 2, 2, "200mbit"))
