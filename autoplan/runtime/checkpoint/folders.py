"""How a checkpoint's folder comes to its place, and how those that aren't to stay go.

A folder is written under ``<name>.<run>.tmp``, every file and the folder itself brought to the disk, state.json last,
and then renamed to its place; one that stood there is ``<name>.old`` between two renames. So at any moment there is a
whole checkpoint under one of both names, and whatever ends in between leaves it so.

Only files that a manifest of autoplan's own names are ever removed:

    writing.json   of a folder that is being written
    state.json     of a finished one
    removing.json  of one that is being removed: state.json under another name, so that half of it is never a checkpoint

A folder that holds anything else is no place for a checkpoint. Another run's is never replaced, and what is damaged
beyond telling is set aside.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import CheckpointError, WeightsError
from autoplan.runtime.checkpoint.index import TENSORS, plain_name
from autoplan.runtime.checkpoint.state_json import (
    FORMAT,
    NUMBERED,
    STATE,
    CheckpointState,
    finished,
    is_numbered,
    numbered,
    read_header,
    replaced,
    sealed,
    sync_folder,
    unsealed,
    write_synced,
)
from autoplan.runtime.elastic.stderr_messages import note

WRITING, REMOVING = "writing.json", "removing.json"
MANIFESTS = (STATE, REMOVING, WRITING)
OWN_NAME = re.compile(r"rank-[0-9]+\.tensors|tensors\.json|(state|writing|removing)\.json")
TOLD = 3  # foreign names that an error lists
OF_ITS_OWN = "give each checkpoint a folder of its own, checkpoints/step-<number> for example"


@dataclass(frozen=True)
class Lineage:
    """Where a run comes from.

    run     its own identity
    root    of the run whose weights it goes back to: its own, or that of the checkpoint it loaded
    parent  the checkpoint that it loaded or saved last; ``parent_s``: when that was written
    """

    run: str
    root: str
    parent: str | None = None
    parent_s: float = 0.0


def rank_file(rank: int) -> str:
    return f"rank-{rank}.tensors"


def staging(target: Path, run: str) -> Path:
    """Where a run writes what is to come to ``target``."""
    return target.with_name(f"{target.name}.{run[:8]}.tmp")


def lock_file(target: Path) -> Path:
    """One for all that are named step-<number>, since each run counts and removes them; one for each other name."""
    return target.with_name(".step.lock" if is_numbered(target) else f".{target.name}.lock")


def begin(target: Path, lineage: Lineage, world: int) -> Path:
    """An empty folder to write into, where a checkpoint may come to ``target``; CheckpointError where it may not."""
    recover(target)
    make_way(target, lineage)
    folder = staging(target, lineage.run)
    clear(folder)
    folder.mkdir()
    names = [TENSORS, *(rank_file(rank) for rank in range(world))]
    write_synced(folder / WRITING, sealed({"format": FORMAT, "run": lineage.run, "files": names}).encode())
    return folder


def make_way(target: Path, lineage: Lineage) -> None:
    """CheckpointError where ``target`` holds something that isn't this run's to replace.

    A checkpoint of this run, or one that it came from, is left where it is, to be replaced by ``put_in_place``.
    """
    if target.is_symlink():
        raise CheckpointError(target, "it is a symbolic link", "give the folder that it leads to, or another")
    if not target.exists():
        return
    if not target.is_dir():
        raise CheckpointError(target, "it is a file", OF_ITS_OWN)
    names = manifest(target)
    foreign = sorted(path.name for path in target.iterdir() if path.name not in (names or ()) or not path.is_file())
    damaged = names is None and bool(foreign) and all(OWN_NAME.fullmatch(name) for name in foreign)
    if foreign and not damaged:
        more = f" and {len(foreign) - TOLD} more" if len(foreign) > TOLD else ""
        said = f"it holds what is no checkpoint's: {', '.join(foreign[:TOLD])}{more}"
        raise CheckpointError(target, said, OF_ITS_OWN)
    if damaged:
        set_aside(target, "damaged")
    elif (target / STATE).exists():
        make_way_of(target, lineage)


def make_way_of(target: Path, lineage: Lineage) -> None:
    """The same for a checkpoint whose state.json is sound, or of an older version."""
    try:
        there = read_header(target)
    except WeightsError as error:
        raise CheckpointError(target, f"it holds another checkpoint: {error.cause}", OF_ITS_OWN) from None
    if there.root != lineage.root:
        said = f"it holds a checkpoint of another run, of step {there.step}, which this one didn't begin from"
        raise CheckpointError(target, said, "load it first to go on from it, or give another folder")
    if there.run != lineage.run and there.id not in ancestors(target.parent, lineage):
        set_aside(target, there.run[:8])  # of a run that began from the same weights, and went on otherwise


def set_aside(folder: Path, why: str) -> None:
    """Gives a folder another name beside its own; nothing in it is touched."""
    places = (folder.with_name(f"{folder.name}.{why}-{number}") for number in range(1, 10_000))
    place = next(place for place in places if not place.exists())
    folder.rename(place)
    note(f"{folder} is set aside as {place.name}")


def manifest(folder: Path) -> set[str] | None:
    """The names of the files in a folder that are autoplan's own; None where no manifest says."""
    for name in MANIFESTS:
        try:
            data = unsealed(folder / name)
            listed = data["files"]
            return {plain_name(file) for file in listed} | set(MANIFESTS)  # type: ignore[attr-defined]
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return None


def clear(folder: Path) -> None:
    """Removes the files that a folder's own manifest names, and the folder, unless there is something else in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    names = manifest(folder)
    if names is not None:
        if (folder / STATE).exists():
            (folder / STATE).rename(folder / REMOVING)
        for name in (*sorted(names - set(MANIFESTS)), WRITING, REMOVING):  # the manifests last: an end leaves them
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def put_in_place(folder: Path, target: Path) -> None:
    """Renames a finished folder to ``target``, and removes what stood there."""
    old = replaced(target)
    if target.is_dir():
        if any(target.iterdir()):
            retire(old)
            target.rename(old)
        else:
            target.rmdir()
    folder.rename(target)
    sync_folder(target.parent)
    clear(old)


def retire(old: Path) -> None:
    """Has nothing stand under a name that a checkpoint is about to have."""
    clear(old)
    if old.exists() or old.is_symlink():
        set_aside(old, "kept")


def recover(target: Path) -> None:
    """Undoes what a process that ended between two renames left: what it was to replace is at its place again."""
    old = replaced(target)
    if finished(target) or not finished(old) or old.is_symlink():
        return
    if target.exists() or target.is_symlink():
        set_aside(target, "damaged")
    old.rename(target)


def tidy(target: Path) -> None:
    """Removes what ended processes left of saves under this name, or all numbered ones; no other run is at it."""
    if not is_numbered(target):
        family = re.compile(re.escape(target.name) + r"\.[0-9a-f]{8}\.tmp")
        found = [path for path in target.parent.iterdir() if family.fullmatch(path.name)]
    else:
        found = [path for _, path in numbered(target.parent) if path.suffix == ".tmp"]
        found += [path for _, path in numbered(target.parent) if path.suffix == ".old" and superseded(path)]
        found += [path for _, path in numbered(target.parent) if (path / REMOVING).exists()]
    for path in found:
        clear(path)


def superseded(old: Path) -> bool:
    return finished(old.with_name(old.name.removesuffix(".old")))


def prune(target: Path, keep: int, lineage: Lineage) -> None:
    """Removes this run's checkpoints beside the one just saved, but for the ``keep`` that it goes back to.

    This run's are those that it wrote itself, and those that they were reached from. Where fewer than ``keep`` lead to
    the newest, the ones written last stay, too. Other runs' aren't counted, nor looked at through a symbolic link.
    """
    known = headers(target.parent, lineage.root)
    newest = next(state for path, state in known.items() if path == target)
    line = [path for path, _ in line_of(known, newest)]
    own = [path for path, state in known.items() if state.run == lineage.run or path in line]
    others = sorted((path for path in own if path not in line), key=lambda p: known[p].written_s, reverse=True)
    kept = ([path for path in line if finished(path)] + [path for path in others if finished(path)])[:keep]
    for path in own:
        if path not in kept and path != target:
            clear(path)


def headers(parent: Path, root: str) -> Mapping[Path, CheckpointState]:
    """The checkpoints in a folder that go back to the same weights, by their paths."""
    found = {}
    for _, path in numbered(parent):
        suffix = NUMBERED.fullmatch(path.name)
        if suffix is not None and suffix[2] is None and not path.is_symlink():
            with contextlib.suppress(WeightsError):
                state = read_header(path)
                if state.root == root and root:
                    found[path] = state
    return found


def line_of(known: Mapping[Path, CheckpointState], newest: CheckpointState) -> Sequence[tuple[Path, CheckpointState]]:
    """A checkpoint, the one that it was reached from, and so on, as far as they are there."""
    by_id = {state.id: (path, state) for path, state in known.items()}
    line: list[tuple[Path, CheckpointState]] = []
    at: str | None = newest.id
    while at in by_id and len(line) < len(by_id):
        line.append(by_id[at])
        at = line[-1][1].parent
    return line


def ancestors(parent: Path, lineage: Lineage) -> Iterable[str]:
    """The identities of the checkpoints in a folder that a run goes back to."""
    known = headers(parent, lineage.root)
    start = next((state for state in known.values() if state.id == lineage.parent), None)
    return [state.id for _, state in line_of(known, start)] if start is not None else []
