"""The exported folder: plan.json, program.py, train.py (run.py of a plan of the forward alone), report.html.

Written whole or not at all: everything is made in a directory beside the target and moved into place at the end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import ModuleType

from autoplan.cluster import ClusterSpec, Known
from autoplan.codec import decode, encode, expect
from autoplan.emit.program import emit_program
from autoplan.errors import ClusterError, LayoutError, PlanFileError
from autoplan.evaluation import forms_of
from autoplan.extensions import Extension, require
from autoplan.graph import Model
from autoplan.initialise import InitRecipe
from autoplan.mesh import MICROBATCH
from autoplan.options import Inference, Training
from autoplan.record import SCHEMA, Asked, Evaluable, PlanRecord
from autoplan.runtime.spec import ProgramSpec
from autoplan.search.choice import Alternative, Chosen, SearchReport

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
}


def plan_text(record: PlanRecord, headline: str) -> str:
    """plan.json: stable order, one line for each short item, so that two plans can be compared with diff."""
    data = {"schema": SCHEMA, "plan": headline, "cluster": record.cluster.to_dict()}
    data |= {"profiles": encode(record.cluster.known)}
    data |= {"training_kind": type(record.training).__name__}
    data |= {name: encode(getattr(record, name)) for name in PARTS}
    return compact_json(data) + "\n"


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


def parse_plan(text: str, where: str) -> PlanRecord:
    """The plan that a plan.json holds; PlanFileError for another schema, and for what isn't a plan; ExtensionError
    where it needs operators of a user's that can't be imported."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits isn't a JSONDecodeError
        raise PlanFileError(where, f"no JSON: {error}", "plan again and export") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise PlanFileError(where, "this isn't a plan: it has no schema", "give a folder that plan.export() wrote")
    if data["schema"] != SCHEMA:
        raise PlanFileError(
            f"{where}: schema {data['schema']!r}",
            f"this version of autoplan reads schema {SCHEMA}",
            "plan again with this version, or use the version that wrote it",
        )
    missing = [name for name in ("cluster", "profiles", "training_kind", *PARTS) if name not in data]
    if missing:
        raise PlanFileError(where, f"it lacks {missing}", "plan again and export")
    training = {"Training": Training, "Inference": Inference}.get(str(data["training_kind"]))
    if training is None:
        raise PlanFileError(f"{where}: training_kind", "it is Training or Inference", "undo the edit, or plan again")
    kinds = {**PARTS, "training": training}
    parts = {name: decode(kind, data[name], f"{where}: {name}") for name, kind in kinds.items()}
    record = PlanRecord(cluster=cluster_of(data["cluster"], data["profiles"], where), **parts)
    require(record.extensions)
    check(record, where)
    return record


def cluster_of(data: object, profiles: object, where: str) -> ClusterSpec:
    """The cluster that a plan was made for, with the figures that it was made with: their files may be elsewhere."""
    known = decode(Known, profiles, f"{where}: profiles")
    try:
        return ClusterSpec.kept(expect(data, dict, f"{where}: cluster"), known)
    except ClusterError as error:
        raise PlanFileError(f"{where}: cluster", str(error), "undo the edit, or plan again and export") from None


def check(record: PlanRecord, where: str) -> None:
    """Whether the parts of a plan that was read agree, and its layouts follow from one another."""
    mesh, parallelism = record.chosen.mesh, record.chosen.parallelism
    told = {"pp": parallelism.pp, "dp": parallelism.dp, "tp": parallelism.tp, MICROBATCH: record.chosen.microbatches}
    sizes = {name: mesh.size(name) for name in told} | {"tp": mesh.tensor_size}
    wrong = [f"{name}={size}" for name, size in told.items() if size != sizes[name]]
    if wrong:
        raise PlanFileError(where, f"{', '.join(wrong)}: its mesh is {mesh}", "undo the edit, or plan again and export")
    try:
        record.lowered()
    except LayoutError as error:
        raise PlanFileError(where, f"its layouts don't follow: {error}", "undo the edit, or plan again") from None
    except (KeyError, IndexError, ValueError, AssertionError, StopIteration) as error:
        said = f"its parts don't fit together ({type(error).__name__}: {error})"
        raise PlanFileError(where, said, "undo the edit, or plan again and export") from None


def write_folder(record: PlanRecord, folder: str | os.PathLike, headline: str, extra: Mapping[str, str]) -> Path:
    """Writes the folder and returns its path.

    extra  further files by name (report.html)
    PlanFileError where the folder is a file, or can't be written.
    """
    target = path_of(folder)
    lowered = record.lowered()
    script = "run.py" if isinstance(record.training, Inference) else "train.py"
    files = {
        "plan.json": plan_text(record, headline),
        "program.py": emit_program(lowered, record.training, headline, record.extensions),
        script: resources.files("autoplan.emit").joinpath(f"templates/{script}.txt").read_text(),
        **extra,
    }
    if target.exists() and not target.is_dir():
        raise PlanFileError(folder, "it is a file", "give a folder to export to")
    try:
        put(files, target)
    except OSError as error:
        cause = f"nothing can be written there: {error.strerror or error}"
        raise PlanFileError(folder, cause, "give a folder in a place of your own") from error
    return target


def put(files: Mapping[str, str], target: Path) -> None:
    """Puts all of the files there, or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, text in files.items():
            (staging / name).write_text(text)
        target.mkdir(exist_ok=True)
        for name in files:
            os.replace(staging / name, target / name)
    finally:
        shutil.rmtree(staging)


def read_folder(folder: str | os.PathLike) -> PlanRecord:
    """The plan of an exported folder (or of a plan.json)."""
    path = path_of(folder)
    file = path if path.suffix == ".json" else path / "plan.json"
    if not file.is_file():
        raise PlanFileError(folder, "there is no plan.json", "give a folder that plan.export() wrote")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanFileError(file, f"it can't be read as text: {error}", "plan again and export") from None
    return parse_plan(text, str(file))


def path_of(folder: object) -> Path:
    """A path that a user gives; PlanFileError for what is none."""
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise PlanFileError(repr(folder), "it is no folder's path", "give one as a text, such as 'out/'")
    return Path(folder)


def program_module(folder: str | os.PathLike) -> ModuleType:
    """program.py of an exported folder, imported."""
    file = Path(folder) / "program.py"
    if not file.is_file():
        raise PlanFileError(folder, "there is no program.py", "export the plan again")
    spec = importlib.util.spec_from_file_location(f"autoplan_program_{abs(hash(str(file.resolve())))}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a compiler looks up the globals of a forward that is checkpointed within
    spec.loader.exec_module(module)
    return module


def program_spec(record: PlanRecord) -> ProgramSpec:
    """What the runtime needs to know of a plan."""
    training = record.training
    if isinstance(training, Inference):
        training = Training(precision=training.precision, compile=training.compile)
    return ProgramSpec(
        lowered=record.lowered(),
        parallelism=record.chosen.parallelism,
        training=training,
        transient_buffers=tuple(b.name for b in record.model.buffers if not b.persistent),
        init=record.init,
        unread=record.model.unread,
        forms=forms_of(record),
        forward_only=isinstance(record.training, Inference),
    )
