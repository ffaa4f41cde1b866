"""The exported folder: plan.json, program.py, train.py (run.py of a plan of the forward alone), report.html, and what
came with the model beside its weights.

Written whole or not at all: everything is made in a directory beside the target and moved into place at the end.
plan.json has a checksum of itself and one of each file: what was damaged, mixed up with another plan's or edited is
told apart from what was planned. train.py is a template that its user edits; an export leaves it then as it is.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from torch import nn

from autoplan.cluster import ClusterSpec, Known
from autoplan.deferred import deferred
from autoplan.errors import ClusterError, LayoutError, PlanFileError
from autoplan.export.owned_files import (
    DAMAGED,
    OPEN,
    PLAN,
    PROGRAM,
    RUN,
    TRAIN,
    check_files,
    code_of,
    compiled,
    exported_files,
    may_replace,
    remove_stale,
)
from autoplan.ir.checksums import SEAL, bytes_hash, is_sealed, sealed
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.codec import decode, decode_parts, encode, expect
from autoplan.ir.graph import Model
from autoplan.ir.record import SCHEMA, Asked, Evaluable, PlanRecord
from autoplan.ir.start import FOLDER, InitRecipe, Start
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import program_of
from autoplan.options import Inference, Training
from autoplan.rules.extensions import Extension, require

if TYPE_CHECKING:
    from autoplan.emit.sized_program import SizedProgram, program_text
    from autoplan.evaluation.form import forms_of
    from autoplan.runtime.program_spec import ProgramSpec
    from autoplan.runtime.weights.start_values import names_of, put_values, write_values
else:  # for what is written or run: a report needs no runtime
    SizedProgram = deferred("autoplan.emit.sized_program.SizedProgram")
    program_text = deferred("autoplan.emit.sized_program.program_text")
    forms_of = deferred("autoplan.evaluation.form.forms_of")
    ProgramSpec = deferred("autoplan.runtime.program_spec.ProgramSpec")
    names_of = deferred("autoplan.runtime.weights.start_values.names_of")
    put_values = deferred("autoplan.runtime.weights.start_values.put_values")
    write_values = deferred("autoplan.runtime.weights.start_values.write_values")

PARTS = {
    "training": Training | Inference,
    "model": Model,
    "chosen": Chosen,
    "alternatives": tuple[Alternative, ...],
    "search": SearchReport,
    "init": InitRecipe | None,
    "asked": Asked,
    "extensions": tuple[Extension, ...],
    "evaluable": Evaluable,
    "start": Start,
}


def plan_text(record: PlanRecord, headline: str, files: Mapping[str, bytes] | None = None) -> str:
    """plan.json: stable order, one line for each short item, so that two plans can be compared with diff.

    files  what stands beside it
    """
    data = {"schema": SCHEMA, "plan": headline, "cluster": record.cluster.to_dict()}
    data |= {"profiles": encode(record.cluster.known)}
    data |= {"training_kind": type(record.training).__name__}
    data |= {name: encode(getattr(record, name)) for name in PARTS}
    data |= {"files": {name: bytes_hash(content) for name, content in (files or {}).items()}}
    return compact_json(sealed(data)) + "\n"


def compact_json(value: object, indent: int = 0) -> str:
    """JSON in which whatever fits into 120 columns stands on one line."""
    flat = json.dumps(value)
    if len(flat) + indent <= 118 or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{pad}{json.dumps(key)}: {compact_json(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    items = [pad + compact_json(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"


def plan_data(text: str | bytes, where: str, edited: bool = False) -> dict:
    """What a plan.json holds, as it was written. PlanFileError for another schema, for what isn't a plan, and where
    its checksum isn't that of its content.

    edited  whether the content may have been edited since
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits isn't a JSONDecodeError
        raise PlanFileError(where, f"no JSON: {error}"[:300], "plan again and export") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise PlanFileError(where, "this isn't a plan: it has no schema", "give a folder that plan.export() wrote")
    if data["schema"] != SCHEMA:
        raise PlanFileError(
            f"{where}: schema {data['schema']!r}",
            f"this version of autoplan reads schema {SCHEMA}",
            "plan again with this version, or use the version that wrote it",
        )
    if not edited and not is_sealed(data):
        raise PlanFileError(where, "its content isn't what its checksum says: it is damaged, or was edited", DAMAGED)
    files = data.get("files")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise PlanFileError(where, "it lacks the checksums of its files", "plan again and export")
    return data


def checked(data: dict, where: str) -> tuple[PlanRecord, Lowered]:
    """The plan in what ``plan_data`` gave, and its typed program. PlanFileError for what can't be one; ExtensionError
    where it needs operators of a user's that can't be imported."""
    missing = [name for name in ("cluster", "profiles", "training_kind", *PARTS) if name not in data]
    if missing:
        raise PlanFileError(where, f"it lacks {missing}", "plan again and export")
    training = {"Training": Training, "Inference": Inference}.get(str(data["training_kind"]))
    if training is None:
        raise PlanFileError(f"{where}: training_kind", "it is Training or Inference", "undo the edit, or plan again")
    kinds = {**PARTS, "training": training}
    parts = decode_parts(kinds, data, where)
    record = PlanRecord(cluster=cluster_of(data["cluster"], data["profiles"], where), **parts)
    require(record.extensions)
    return record, check(record, where)


def cluster_of(data: object, profiles: object, where: str) -> ClusterSpec:
    """The cluster that a plan was made for, with the figures that it was made with: their files may be elsewhere."""
    known = decode(Known, profiles, f"{where}: profiles")
    try:
        return ClusterSpec.kept(expect(data, dict, f"{where}: cluster"), known)
    except ClusterError as error:
        raise PlanFileError(f"{where}: cluster", str(error), "undo the edit, or plan again and export") from None


def check(record: PlanRecord, where: str) -> Lowered:
    """Whether the parts of a plan that was read agree, and its layouts follow from one another: the typed program."""
    mesh, parallelism = record.chosen.mesh, record.chosen.parallelism
    told = {axis.name: axis.size for axis in parallelism.mesh(record.chosen.microbatches).axes}
    wrong = [f"{name}={size}" for name, size in told.items() if size != mesh.size(name)]
    if wrong:
        raise PlanFileError(where, f"{', '.join(wrong)}: its mesh is {mesh}", "undo the edit, or plan again and export")
    try:
        return program_of(record)
    except LayoutError as error:
        raise PlanFileError(where, f"its layouts don't follow: {error}", "undo the edit, or plan again") from None
    except (KeyError, IndexError, ValueError, AssertionError, StopIteration) as error:
        said = f"its parts don't fit together ({type(error).__name__}: {error})"
        raise PlanFileError(where, said, "undo the edit, or plan again and export") from None


def write_folder(
    record: PlanRecord, folder: str | os.PathLike, headline: str, extra: Mapping[str, str | bytes],
    values: nn.Module | Path | None = None,
) -> Path:  # fmt: skip
    """Writes the folder and returns its path.

    extra   further files by name, which may have folders in it (report.html, pretrained/config.json)
    values  the model, or the folder of values, that training starts from, where the plan comes with values
    PlanFileError, and nothing is written, where a file would be replaced that no export wrote, or that was edited
    since, and where nothing can be written there. An edited train.py stays as it is, with a warning.
    """
    target = path_of(folder)
    script = RUN if isinstance(record.training, Inference) else TRAIN
    given = {
        PROGRAM: program_text(record, headline),
        script: resources.files("autoplan.emit").joinpath(f"templates/{script}.txt").read_text(),
        **extra,
    }
    files = {name: text.encode() if isinstance(text, str) else text for name, text in given.items()}
    try:
        kept = put(record, files, target, headline, values)
    except OSError as error:
        cause = f"nothing can be written there: {error.strerror or error}"
        raise PlanFileError(folder, cause, "give a folder in a place of your own") from error
    for name in kept:
        warnings.warn(f"{target / name} was edited since it was exported, and was left as it is", stacklevel=3)
    return target


def put(
    record: PlanRecord, files: dict[str, bytes], target: Path, headline: str, values: nn.Module | Path | None
) -> list[str]:
    """Puts all of the files there, plan.json and the values too, or none. Returns those that were edited, and stay."""
    before = exported_files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        start = record.start
        if values is not None:
            start = write_values(start, values, staging / FOLDER, names_of(record.model))
        files[PLAN] = plan_text(replace(record, start=start), headline, files).encode()
        kept = [name for name in files if not may_replace(target, name, files[name], before)]
        for name, content in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(content)
        target.mkdir(exist_ok=True)
        if values is not None:
            put_values(start, staging, target, start_in(target))
        for name in (name for name in files if name not in kept):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, target / name)
        remove_stale(target, {name: value for name, value in before.items() if name not in files})
    finally:
        shutil.rmtree(staging)
    return kept


def start_in(folder: Path) -> Start:
    """Where the plan that stands in a folder starts from; without one, or where it isn't readable, from nothing."""
    try:
        return decode(Start, json.loads((folder / "plan.json").read_text())["start"], "start")
    except (OSError, ValueError, KeyError, TypeError, PlanFileError):
        return Start()


@dataclass(frozen=True)
class OpenedPlan:
    """A plan.json that was read, proven and compared with its checksums, once.

    folder  that it lies in
    files   the checksums of what was exported with it, by name
    """

    folder: Path
    record: PlanRecord
    lowered: Lowered
    files: Mapping[str, str]

    def spec(self) -> ProgramSpec:
        """What the runtime needs to know of the plan."""
        return program_spec(self.record, self.folder, self.lowered)

    def program_text(self) -> bytes:
        """program.py beside it. PlanFileError where a file of the plan is missing, or isn't the one that was exported
        with it."""
        file = self.folder / PROGRAM
        if not file.is_file():
            raise PlanFileError(self.folder, "there is no program.py", "export the plan again")
        content = file.read_bytes()
        missing = [name for name in self.files if name not in OPEN and not (self.folder / name).is_file()]
        if missing:
            raise PlanFileError(self.folder, f"{missing[0]} is missing, which was exported with it", DAMAGED)
        check_files(self.folder, self.files)
        if self.files.get(PROGRAM) != bytes_hash(content):
            raise PlanFileError(file, "it isn't the program of the plan beside it", DAMAGED)
        return content

    def module(self) -> ModuleType:
        """program.py, imported: its code runs. Errors as of ``program_text``.

        What runs is what was compared: neither the file read again nor what Python may have cached of another, nor
        what has been exported there since.
        """
        file, content = self.folder / PROGRAM, self.program_text()
        spec = importlib.util.spec_from_file_location(f"autoplan_program_{abs(hash(str(file.resolve())))}", file)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where a compiler looks up globals of a forward that is checkpointed within
        exec(code_of(file, content), module.__dict__)
        return module


def opened(folder: str | os.PathLike) -> OpenedPlan:
    """An exported folder (or a plan.json). Errors as of ``plan_data`` and ``checked``, and a PlanFileError where a file
    of the folder isn't the plan's."""
    file = plan_file(folder)
    data = plan_data(content_of(file), str(file))
    record, lowered = checked(data, str(file))
    if Path(folder).suffix != ".json":
        check_files(file.parent, data["files"])
    return OpenedPlan(file.parent, record, lowered, data["files"])


def plan_file(folder: str | os.PathLike) -> Path:
    path = path_of(folder)
    file = path if path.suffix == ".json" else path / PLAN
    if not file.is_file():
        raise PlanFileError(folder, "there is no plan.json", "give a folder that plan.export() wrote")
    return file


def content_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PlanFileError(file, f"it can't be read: {error}", "plan again and export") from None


def path_of(folder: object) -> Path:
    """A path that a user gives; PlanFileError for what is none."""
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise PlanFileError(repr(folder), "it is no folder's path", "give one as a text, such as 'out/'")
    return Path(folder)


def seal_folder(folder: str | os.PathLike) -> tuple[str, ...]:
    """Takes the edits in a folder: its checksums become those of what stands there. Returns what differed, by name.

    PlanFileError, and nothing is changed, where plan.json is no plan that can be run, or program.py no Python.
    """
    file = plan_file(folder)
    content = content_of(file)
    data = plan_data(content, str(file), edited=True)
    checked(data, str(file))
    before = data["files"]
    data["files"] = {n: bytes_hash((file.parent / n).read_bytes()) for n in before if (file.parent / n).is_file()}
    compiled(file.parent / PROGRAM)
    differ = [name for name in before if data["files"].get(name) != before[name]]
    if sealed(data)[SEAL] != data.get(SEAL):
        write_plan_data(file, data)
        differ = differ if is_sealed({**data, "files": before}) else [PLAN, *differ]
    return tuple(differ)


def write_plan_data(file: Path, data: dict) -> None:
    """Writes a plan.json under a checksum of its own, whole or not at all."""
    staged = file.with_name(f".{file.name}.tmp")
    staged.write_text(compact_json(sealed(data)) + "\n")
    staged.replace(file)


def program_spec(
    record: PlanRecord, folder: str | os.PathLike | None = None, lowered: Lowered | None = None
) -> ProgramSpec:
    """What the runtime needs to know of a plan, of the folder that it was loaded from, and its typed program where
    that is known."""
    training = record.training
    if isinstance(training, Inference):
        training = Training(precision=training.precision, compile=training.compile)
    sized = SizedProgram(record, program_of(record) if lowered is None else lowered)
    return ProgramSpec(
        lowered=sized.lowered,
        parallelism=record.chosen.parallelism,
        training=training,
        transient_buffers=tuple(b.name for b in record.model.buffers if not b.persistent),
        init=record.init,
        unread=record.model.unread,
        forms=forms_of(record),
        resized=sized.at,
        forward_only=isinstance(record.training, Inference),
        on_processors=on_processors(record.cluster),
        start=record.start,
        values=values_of(record.start, folder) if folder is not None else None,
        node=record.cluster.topology().levels[0].size,
    )


def on_processors(cluster: ClusterSpec) -> bool:
    """Whether all of a cluster's devices are processors: their memory is the host's own."""
    hosts = [device.host for device, _ in cluster.topology().kinds]
    return all(host is not None and host.own for host in hosts)


def values_of(start: Start, folder: str | os.PathLike) -> Path:
    """Where the values lie that a plan's training starts from."""
    return Path(start.folder) if start.folder else values_in(folder)


def values_in(folder: str | os.PathLike) -> Path:
    """Where the values of an exported folder (or of a plan.json) lie."""
    path = Path(folder)
    return (path.parent if path.suffix == ".json" else path) / FOLDER
