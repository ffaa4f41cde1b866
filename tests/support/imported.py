"""What commands import, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def imported_by(commands: Sequence[Sequence[str]], names: Sequence[str], status: int) -> str:
    """Those of the modules that are there once these commands have run in a fresh interpreter, as a list's text."""
    code = f"""
import sys
from autoplan.cli import main
for command in {commands!r}:
    try:
        got = main(command)
    except SystemExit as ended:
        got = ended.code
    assert got == {status}, (command, got)
print("imported:", [name for name in {tuple(names)!r} if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.rpartition("imported: ")[2].strip()
