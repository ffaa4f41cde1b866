"""What a process imports is what it runs: a rank no search, a command that prints a plan no runtime and no solver."""

import subprocess
import sys
from importlib import resources

import autoplan
from autoplan import deferred
from tests.support.imported import imported_by

ABSENT = (
    "autoplan.search", "autoplan.solver", "autoplan.cost", "autoplan.verify", "autoplan.rehearsal", "autoplan.report",
    "scipy", "pulp", "highspy", "networkx",
)  # fmt: skip
TORCH = ("torch", "numpy", "transformers", "rich")


def imports_of(script: str) -> str:
    """The import statements of a template."""
    text = resources.files("autoplan.emit").joinpath(f"templates/{script}.txt").read_text()
    return "\n".join(line for line in text.splitlines() if line.startswith(("import ", "from ")))


def test_scripts_of_a_folder_import_no_search() -> None:
    torch_alone = "import torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.checkpoint, sys"
    asked = f"[m for m in sys.modules if m not in before and m.startswith({ABSENT!r})]"
    scripts = "\n".join(map(imports_of, ("train.py", "run.py"))).replace("from __future__ import annotations\n", "")
    code = f"{torch_alone}\nbefore = set(sys.modules)\n{scripts}\nautoplan.load\nprint({asked})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", (found.stdout, found.stderr)


def test_help_and_mistaken_arguments_import_no_torch() -> None:
    assert imported_by([["--help"], ["plan", "--help"], ["devices"]], TORCH, 0) == "[]"
    mistakes = [["show"], ["plan"], ["report"], ["config", "out", "megatron-lm"], ["rehearse", "out", "--ranking", "0"]]
    assert imported_by(mistakes, TORCH, 2) == "[]"


def test_every_name_has_a_home() -> None:
    assert {name for names in autoplan.HOMES.values() for name in names} <= set(autoplan.__all__)
    assert all(getattr(autoplan, name) is not None for name in autoplan.__all__)
    assert set(autoplan.__all__) <= set(dir(autoplan))


def test_a_deferred_function_is_the_function() -> None:
    assert deferred.deferred("math.hypot")(3, 4) == 5
