"""A checkpoint's folder: torch's files, and beside them state.json, which says what they are.

A folder is written under ``<name>.tmp``, every file and the folder itself brought to the disk, state.json last, and
then renamed to its place; one that stood there is ``<name>.old`` between two renames. So at any moment there is a
whole checkpoint under one of both names, and whatever ends in between leaves it so. A checkpoint counts only where
each file that state.json lists has the size that it lists.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import Buffer

from autoplan.errors import InputsError, WeightsError
from autoplan.runtime import plain

STATE, FORMAT = "state.json", 1
STEP = "step-"


@dataclass(frozen=True)
class CheckpointState:
    """What a checkpoint says of itself, in plain values.

    step       optimizer steps taken
    world      ranks that wrote it
    optimizer  its class' lower-case name
    learning_rate
    states     of the training's further parts, by name: the loss scaler's, the schedule's
    extra      the user's own
    files      bytes of each file beside state.json
    """

    step: int
    world: int
    optimizer: str
    learning_rate: float
    states: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


class PatientFile(io.BufferedWriter):
    """A file to write that keeps an error until it is closed.

    torch's archive writer, where one is raised below it, may tell of a position that it didn't expect instead.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.failed: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        if self.failed is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failed = error
        return memoryview(data).nbytes


class PatientFiles(FileSystem):
    """torch's files, those that are written patiently."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        patient = PatientFile(path)
        try:
            yield patient
        finally:
            patient.close()
        if patient.failed is not None:
            raise patient.failed


class CheckpointWriter(FileSystemWriter):
    """Torch's writer, which moves the folder to its place as the last act of torch's own protocol.

    So what fails on any rank, the move included, is raised on all of them.

    keep  of the folder's finished neighbours named step-<number>, this one included, all but the last ``keep`` are
          removed afterwards; None: all stay
    """

    def __init__(self, target: Path, state: CheckpointState, keep: int | None) -> None:
        super().__init__(staging(target))
        self.fs = PatientFiles()
        self.target, self.state, self.keep = target, state, keep

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """On every rank. What an ended process left there is no checkpoint to warn of overwriting."""
        staging(self.target).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank, after every rank's plan and before any writes."""
        recover(self.target)
        clear(staging(self.target))
        staging(self.target).mkdir()
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank, once all have written."""
        super().finish(metadata, results)
        folder = staging(self.target)
        write_state(folder, self.state)
        put_in_place(self.target)
        tidy(self.target)
        if self.keep is not None:
            prune(self.target.parent, self.keep)


def staging(target: Path) -> Path:
    return target.with_name(target.name + ".tmp")


def replaced(target: Path) -> Path:
    return target.with_name(target.name + ".old")


def write_state(folder: Path, state: CheckpointState) -> None:
    """state.json of a folder that is otherwise complete, brought to the disk with the folder's list of files."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    data = {"format": FORMAT, **asdict(replace(state, files=files))}
    data |= {name: plain.encode(data[name], name) for name in ("states", "extra")}
    with (folder / STATE).open("w") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Has the names in a folder survive the machine's end, as fsync does for a file's content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(target: Path) -> None:
    old = replaced(target)
    if target.exists():
        clear(old)
        target.rename(old)
    staging(target).rename(target)
    sync_folder(target.parent)
    clear(old)


def recover(target: Path) -> None:
    """Undoes what a process that ended between two renames left: what it was to replace is at its place again."""
    if not finished(target) and finished(replaced(target)):
        clear(target)
        replaced(target).rename(target)


def clear(folder: Path) -> None:
    """Removes a folder where there is one; its state.json first, so that half of it is never a checkpoint."""
    if folder.is_dir():
        (folder / STATE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def tidy(target: Path) -> None:
    """Removes what ended processes left unfinished of earlier steps."""
    for number, path in numbered(target.parent):
        if path.suffix == ".tmp" and number < (number_of(target) or 0):
            clear(path)


def prune(parent: Path, keep: int) -> None:
    """Removes all checkpoints before the last ``keep`` finished ones."""
    kept = sorted({number for number, path in numbered(parent) if path.suffix != ".tmp" and finished(path)})[-keep:]
    for number, path in numbered(parent):
        if number < kept[0]:
            clear(path)


def numbered(parent: Path) -> Iterator[tuple[int, Path]]:
    """The folders named step-<number>, those being written or replaced among them."""
    for path in sorted(parent.glob(f"{STEP}*")):
        number = number_of(path.with_suffix("") if path.suffix in (".tmp", ".old") else path)
        if number is not None:
            yield number, path


def number_of(folder: Path) -> int | None:
    digits = folder.name.removeprefix(STEP)
    return int(digits) if folder.name.startswith(STEP) and digits.isdigit() else None


def check_keep(target: Path, keep: int | None) -> None:
    """InputsError where ``keep`` can't be followed."""
    if keep is None:
        return
    if keep < 1:
        raise InputsError(f"keep={keep}", "at least the checkpoint that is saved stays", "give 1 or more")
    if number_of(target) is None:
        raise InputsError(
            f"keep={keep} with {target.name!r}", "only folders named step-<number> are counted", "name it so"
        )


def finished(folder: Path) -> bool:
    """Whether there is a whole checkpoint under this very name."""
    try:
        read_state(folder)
    except WeightsError:
        return False
    return True


def read_state(folder: Path) -> CheckpointState:
    """What a checkpoint says of itself; WeightsError where it isn't one, or not whole."""
    remedy = "give one that was saved whole: latest_checkpoint finds the last among several"
    if not (folder / STATE).is_file():
        raise WeightsError(folder, "there is no finished checkpoint: it has no state.json", remedy)
    try:
        data = json.loads((folder / STATE).read_text())
        if data["format"] != FORMAT:
            raise WeightsError(folder, f"it has format {data['format']}, this version reads {FORMAT}", remedy)
        data |= {name: plain.decode(data[name]) for name in ("states", "extra")}
        state = CheckpointState(**{name: data[name] for name in CheckpointState.__dataclass_fields__})
        sizes = {name: int(size) for name, size in state.files.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(folder, f"its state.json isn't a checkpoint's ({error!r})", remedy) from None
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            said = "is missing" if found is None else f"has {found} bytes of {size}"
            raise WeightsError(folder, f"it is damaged: {name} {said}", remedy)
    return state


def complete(folder: Path) -> tuple[Path, CheckpointState]:
    """The folder, or the one that it was about to replace; WeightsError where neither is whole."""
    old = replaced(folder)
    where = old if not finished(folder) and finished(old) else folder
    return where, read_state(where)


def latest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The finished checkpoint of the most steps among a folder's ``step-<number>``; None where there is none.

    One that was finished and has been damaged since is left out, with a warning. WeightsError where all have been:
    training that begins anew beside them would be mistaken for one that went on.
    """
    damaged = None
    for _, path in sorted(numbered(Path(folder)), reverse=True):
        if path.suffix == ".tmp" or not (path / STATE).is_file():
            continue
        try:
            read_state(path)
        except WeightsError as error:
            damaged = damaged or error
            warnings.warn(f"left out: {error}", stacklevel=2)
            continue
        return path.with_name(path.name.removesuffix(".old"))
    if damaged is not None:
        raise WeightsError(folder, f"no checkpoint in it is whole; the latest: {damaged}", "give another folder")
    return None
