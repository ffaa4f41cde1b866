"""state.json, which says what a checkpoint is; and which checkpoints a folder holds.

A checkpoint of another format is refused (``read_header``); the error says how its weights are brought over.

A checkpoint counts only where state.json has the checksum that it names, and each file that it lists is as long as it
says. What the files hold has checksums as well (``index``), which a load compares before it changes anything.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autoplan.errors import InputsError, WeightsError
from autoplan.runtime.checkpoint import plain_values
from autoplan.runtime.checkpoint.index import REMEDY, TENSORS, digest, plain_name

STATE, FORMAT = "state.json", 2
CHECKSUM = "checksum"
NUMBERED = re.compile(r"step-([0-9]+)(\.old|\.[0-9a-f]{8}\.tmp)?")
PLAIN_FIELDS = ("states", "extra", "groups", "schedule")


@dataclass(frozen=True)
class CheckpointState:
    """What a checkpoint says of itself, in plain values.

    step       optimizer steps taken
    world      ranks that wrote it
    optimizer  its class' lower-case name
    learning_rate  of the optimizer's first group
    groups     of the optimizer: each one's options, and the names of its parameters (None: of all)
    schedule   the plan's, as text and data; None: it has none
    states     of the training's further parts, by name: the loss scaler's, the schedule's
    extra      the user's own
    id         of this checkpoint; ``run``: of the run that wrote it
    root       of the run that began with the weights that it goes back to
    parent     the checkpoint that this one was reached from; None: the weights' own beginning
    written_s  when, by the writer's clock; later than its parent's in any case
    tensors    the digest of tensors.json
    files      bytes of each file beside state.json
    """

    step: int
    world: int
    optimizer: str
    learning_rate: float
    groups: Sequence[object] = ()
    schedule: object = None
    states: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    id: str = ""
    run: str = ""
    root: str = ""
    parent: str | None = None
    written_s: float = 0.0
    tensors: str = ""
    files: Mapping[str, int] = field(default_factory=dict)


def state_text(state: CheckpointState) -> str:
    """state.json, its checksum included."""
    data = {"format": FORMAT, **asdict(state)}
    data |= {name: plain_values.encode(getattr(state, name), name) for name in PLAIN_FIELDS}
    return sealed(data)


def sealed(data: Mapping[str, object]) -> str:
    """As JSON, with a checksum of all the rest in it."""
    return json.dumps({**data, CHECKSUM: checksum(data)}, indent=1)


def checksum(data: Mapping[str, object]) -> str:
    """Of the values, however they are spaced."""
    text = json.dumps({name: value for name, value in data.items() if name != CHECKSUM}, sort_keys=True)
    return digest(text.encode())


def unsealed(file: Path) -> dict[str, object]:
    """What a sealed file says. ValueError where it isn't as it was written; OSError where it can't be read."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it has lists within lists without end") from None
    if not isinstance(data, dict):
        raise ValueError("it is no object")
    if data.get("format") == FORMAT and data.get(CHECKSUM) != checksum(data):
        raise ValueError("its checksum differs: it isn't as it was written")
    return data


def read_header(folder: Path) -> CheckpointState:
    """What a checkpoint says of itself, its files not looked at; WeightsError where it isn't one."""
    try:
        data = unsealed(folder / STATE)
    except (FileNotFoundError, NotADirectoryError):
        said = "there is no finished checkpoint: it has no state.json"
        raise WeightsError(
            folder, said, "give one that was saved whole: latest_checkpoint finds the last among several"
        ) from None
    except (ValueError, OSError) as error:
        raise WeightsError(folder, f"it is damaged: its {STATE} isn't a checkpoint's ({error})", REMEDY) from None
    if data.get("format") != FORMAT:
        remedy = "load it with the version of autoplan that wrote it, save_weights there, and load_weights here"
        said = f"it has format {data.get('format')!r}, this version reads {FORMAT}"
        raise WeightsError(folder, said, remedy if isinstance(data.get("format"), int) else REMEDY)
    try:
        state = CheckpointState(**{name: data[name] for name in CheckpointState.__dataclass_fields__})  # type: ignore[arg-type]
        decoded = {name: plain_values.decode(data[name]) for name in PLAIN_FIELDS}
        files = {plain_name(name): int(size) for name, size in state.files.items()}
        return CheckpointState(**{**vars(state), **decoded, "files": files})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(folder, f"it is damaged: its {STATE} isn't a checkpoint's ({error!r})", REMEDY) from None


def read_state(folder: Path) -> CheckpointState:
    """The same of one whose files are all as long as it says; WeightsError otherwise."""
    state = read_header(folder)
    for name, size in state.files.items():
        found = bytes_of(folder / name)
        if found != size:
            said = "is missing" if found is None else f"has {found} bytes of {size}"
            raise WeightsError(folder, f"it is damaged: {name} {said}", REMEDY)
    if TENSORS not in state.files:
        raise WeightsError(folder, f"it is damaged: it lists no {TENSORS}", REMEDY)
    return state


def bytes_of(file: Path) -> int | None:
    """A file's length; None where there is none."""
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def finished(folder: Path) -> bool:
    """Whether there is a checkpoint under this very name whose files are all there."""
    try:
        read_state(folder)
    except WeightsError:
        return False
    return True


def complete(folder: Path) -> tuple[Path, CheckpointState]:
    """The folder, or the one that it was about to replace; WeightsError where neither is whole."""
    old = replaced(folder)
    where = old if not finished(folder) and finished(old) else folder
    return where, read_state(where)


def replaced(target: Path) -> Path:
    """Where a checkpoint stands between the two renames that replace it."""
    return target.with_name(target.name + ".old")


def numbered(parent: Path) -> Iterator[tuple[int, Path]]:
    """The folders named step-<number>, those being written or replaced among them."""
    for path in sorted(parent.glob("step-*")):
        found = NUMBERED.fullmatch(path.name)
        if found is not None:
            yield int(found[1]), path


def is_numbered(target: Path) -> bool:
    found = NUMBERED.fullmatch(target.name)
    return found is not None and found[2] is None


def check_keep(target: Path, keep: int | None) -> None:
    """InputsError where ``keep`` can't be followed."""
    if keep is None:
        return
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise InputsError(f"keep={keep!r}", "at least the checkpoint that is saved stays", "give 1 or more")
    if not is_numbered(target):
        raise InputsError(
            f"keep={keep} with {target.name!r}", "only folders named step-<number> are counted", "name it so"
        )


def latest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The finished checkpoint of a folder's ``step-<number>`` that was written last; None where there is none.

    After training went back to an earlier step that is where it stands, whatever steps it had reached before. One that
    was finished and has been damaged since is left out, with a warning. WeightsError where all have been: training that
    begins anew beside them would be mistaken for one that went on.
    """
    found, damaged = [], []
    for number, path in numbered(plain_values.path_of(folder, "checkpoints")):
        if path.suffix != ".tmp" and (path / STATE).exists():
            try:
                found.append(((read_state(path).written_s, number, path.suffix != ".old"), path))
            except WeightsError as caught:
                damaged.append((number, caught))
    last = max(found, default=None)
    for number, error in damaged:
        if last is None or number >= last[0][1]:
            warnings.warn(f"left out: {error}", stacklevel=2)
    if last is not None:
        return last[1].with_name(last[1].name.removesuffix(".old"))
    if damaged:
        raise WeightsError(
            folder, f"no checkpoint in it is whole; the latest: {max(damaged, key=lambda d: d[0])[1]}",
            "give another folder",
        )  # fmt: skip
    return None


def latest_other(folder: Path) -> Path | None:
    """The checkpoint beside this one that was written last, and whose files are all there; None where there is none."""
    folder = folder.absolute()
    others = [path for _, path in numbered(folder.parent) if path != folder and is_numbered(path) and finished(path)]
    return max(others, key=lambda path: read_header(path).written_s, default=None)


def write_synced(file: Path, content: bytes) -> None:
    """A small file, brought to the disk."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Has the names in a folder survive the machine's end, as fsync does for a file's content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
