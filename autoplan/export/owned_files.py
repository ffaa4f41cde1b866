"""The files of an exported folder: which of them an export may replace, and whether they are still the plan's."""

import json
import types
from collections.abc import Mapping
from pathlib import Path

from autoplan.errors import PlanFileError
from autoplan.ir.checksums import bytes_hash, is_sealed
from autoplan.ir.record import SCHEMA

PLAN, PROGRAM, TRAIN, RUN, REPORT = "plan.json", "program.py", "train.py", "run.py", "report.html"
SCRIPTS = (TRAIN, RUN)  # templates that their users edit
LAUNCHERS = ("launch/torchrun.sh", "launch/slurm.sbatch", "launch/kubernetes.yaml")
OPEN = (*SCRIPTS, REPORT, *LAUNCHERS)  # that loading a plan doesn't read, and that may be edited freely
DAMAGED = "export the plan again; after an edit on purpose: autoplan seal FOLDER"


def exported_files(target: Path) -> dict[str, str | None]:
    """The files of an export that stands there, with their checksums; None where an earlier version wrote none.

    PlanFileError where the folder's plan.json is no plan, or was edited, and where the folder is none.
    """
    if target.exists() and not target.is_dir():
        raise PlanFileError(target, "it is a file, where a folder is to be written", "give another path")
    if not (target / PLAN).exists():
        return {}
    try:
        data = json.loads((target / PLAN).read_bytes())
        older = data["schema"] != SCHEMA
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        said = "it is no plan, and would be replaced"
        raise PlanFileError(target / PLAN, said, "give another folder") from None
    if older:
        return dict.fromkeys((PLAN, PROGRAM, *OPEN))
    if not is_sealed(data):
        said = "it is damaged or was edited since it was exported, and would be replaced"
        raise PlanFileError(target / PLAN, said, "give another folder, or remove it")
    return {PLAN: None, **data["files"]}


def may_replace(target: Path, name: str, content: bytes, before: Mapping[str, str | None]) -> bool:
    """Whether a file may be written, False for an edited script, which stays; PlanFileError where another's would be
    replaced, or an edit lost."""
    path = target / name
    if not path.exists() and not path.is_symlink():
        return True
    there = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    if there == content or (there is not None and before.get(name) == bytes_hash(there)):
        return True
    if name in before and name in SCRIPTS and there is not None:
        return False
    if name in before and before[name] is None and there is not None:
        return True
    said = "it was edited since it was exported" if name in before else "it is there, and no export wrote it"
    raise PlanFileError(path, f"{said}; it would be replaced", "give another folder, or remove it")


def remove_stale(target: Path, files: Mapping[str, str | None]) -> None:
    """Removes what an export before wrote and this one didn't, as far as it is unchanged."""
    for name, value in files.items():
        path = target / name
        if value is not None and path.is_file() and not path.is_symlink() and bytes_hash(path.read_bytes()) == value:
            path.unlink()


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """PlanFileError where a file isn't the one that was exported with the plan. A missing one its reader misses."""
    for name, value in files.items():
        path = folder / name
        if name not in OPEN and path.exists() and (not path.is_file() or bytes_hash(path.read_bytes()) != value):
            said = "it isn't the file that was exported with the plan beside it: it is damaged, or was edited"
            raise PlanFileError(path, said, DAMAGED)


def compiled(file: Path) -> types.CodeType:
    """The code of a file; PlanFileError where there is none, or it isn't Python."""
    if not file.is_file():
        raise PlanFileError(file.parent, f"there is no {file.name}", "export the plan again")
    return code_of(file, file.read_bytes())


def code_of(file: Path, content: bytes) -> types.CodeType:
    try:
        return compile(content, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise PlanFileError(file, f"it isn't Python: {error}", "export the plan again, or mend it there") from None
