"""Checkpoints by torch.distributed.checkpoint: one key for each parameter, whatever the plan.

    parameters/<name>            the parameter
    optimizer/<name>/<field>     a tensor of its optimizer state: of the parameter's shape, or a count of steps
    buffers/<name>
    step, learning_rate          scalars
    class/<optimizer>            a mark: whose state it is
    rng/<rank>                   the rank's random state, taken up where the world has the same size

Names are the program's, the same for every plan of a model; parts are described as DTensors, so that another plan
reads what overlaps its own. A folder is written beside its place and moved there complete: one with a ``.metadata``
can be trusted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from autoplan.errors import WeightsError
from autoplan.runtime.held import HeldParameter, local
from autoplan.runtime.spec import ProgramSpec
from autoplan.runtime.state import Storage


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is taken of, or read into: one rank's state. ``steps``: optimizer steps taken."""

    spec: ProgramSpec
    storage: Storage
    held: Sequence[HeldParameter]
    buffers: Mapping[str, Tensor]
    optimizer: Optimizer
    steps: int


def save(snapshot: Snapshot, folder: str | os.PathLike) -> None:
    """Writes a checkpoint; every rank calls it."""
    target = Path(folder)
    staging, old = target.with_name(target.name + ".tmp"), target.with_name(target.name + ".old")
    first = dist.get_rank() == 0
    if first:
        clear(staging, old)
    dist.barrier()
    state = model_state(snapshot, spoken_for(snapshot)) | optimizer_state(snapshot) | scalars(snapshot)
    dcp.save(state, checkpoint_id=staging)
    dist.barrier()
    if first:
        if target.exists():
            target.rename(old)
        staging.rename(target)
        clear(old)
    dist.barrier()


def load(snapshot: Snapshot, folder: str | os.PathLike) -> int:
    """Reads a checkpoint into the parameters, buffers and optimizer; returns its step count. Every rank calls it."""
    source = complete(Path(folder))
    saved = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    check(snapshot, saved, source)
    moments = new_optimizer_state(snapshot, saved)
    state = model_state(snapshot, snapshot.held) | moments_by_key(snapshot, moments) | scalars(snapshot)
    state = {key: value for key, value in state.items() if key in saved}
    dcp.load(state, checkpoint_id=source)
    for held in snapshot.held:
        if held.name in moments:
            snapshot.optimizer.state[held.updated] = moments[held.name]
    for group in snapshot.optimizer.param_groups:
        group["lr"] = float(state["learning_rate"])
    set_random_state(snapshot, state, saved)
    return int(state["step"])


def clear(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def complete(folder: Path) -> Path:
    """The folder, or the one that it was about to replace; WeightsError where neither was finished."""
    for candidate in (folder, folder.with_name(folder.name + ".old")):
        if (candidate / ".metadata").is_file():
            return candidate
    raise WeightsError(folder, "there is no finished checkpoint: it has no .metadata", "give one that was saved whole")


def latest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The finished checkpoint of the most steps among a folder's ``step-<number>``; None where there is none."""
    found = {path.name.removesuffix(".old") for path in Path(folder).glob("step-*") if (path / ".metadata").is_file()}
    numbers = {int(name.removeprefix("step-")): name for name in found if name.removeprefix("step-").isdigit()}
    return Path(folder) / numbers[max(numbers)] if numbers else None


def spoken_for(snapshot: Snapshot) -> list[HeldParameter]:
    """The parameters that this rank's stage saves; one tied between stages is saved by the first of them."""
    return [h for h in snapshot.held if snapshot.storage.speaks_for(h.stored)]


def model_state(snapshot: Snapshot, held: Sequence[HeldParameter]) -> dict[str, Tensor]:
    """Views of parameters and buffers by key."""
    parameters = {f"parameters/{h.name}": snapshot.storage.dtensor(h, h.values) for h in held}
    return parameters | {f"buffers/{name}": value for name, value in snapshot.buffers.items()}


def optimizer_state(snapshot: Snapshot) -> dict[str, Tensor]:
    """Views of the optimizer's state by key; nothing before its first step."""
    states = snapshot.optimizer.state
    mine = {h.name: states[h.updated] for h in spoken_for(snapshot) if h.updated in states}
    return moments_by_key(snapshot, mine)


def moments_by_key(snapshot: Snapshot, moments: Mapping[str, Mapping[str, object]]) -> dict[str, Tensor]:
    by_name = {h.name: h for h in snapshot.held}
    found = {}
    for name, fields in moments.items():
        for field, value in fields.items():
            if isinstance(value, Tensor):
                found[f"optimizer/{name}/{field}"] = described(snapshot, by_name[name], value)
    return found


def described(snapshot: Snapshot, held: HeldParameter, value: Tensor) -> Tensor:
    """A DTensor where the value has an element for each of the parameter's; a count of steps as it is."""
    return snapshot.storage.dtensor(held, local(value)) if value.shape == held.updated.shape and value.ndim else value


def scalars(snapshot: Snapshot) -> dict[str, Tensor]:
    random = {f"rng/{dist.get_rank()}": torch.get_rng_state()}
    if snapshot.storage.device.type != "cpu":
        random[f"device_rng/{dist.get_rank()}"] = torch.get_device_module(snapshot.storage.device).get_rng_state()
    return random | {
        "step": torch.tensor(snapshot.steps),
        "learning_rate": torch.tensor(float(snapshot.optimizer.param_groups[0]["lr"]), dtype=torch.float64),
        f"class/{snapshot.spec.training.optimizer}": torch.tensor(True),
    }


def check(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """WeightsError, before anything is changed, where the checkpoint isn't one of this model and optimizer.

    Every rank asks for everything, its own or not, so that all raise or none.
    """
    lowered = snapshot.spec.lowered
    wanted = {f"parameters/{p.name}": p.type.shape for p in lowered.parameters}
    wanted |= {f"buffers/{b.name}": b.type.shape for b in lowered.buffers}
    for key, shape in wanted.items():
        what, name = key.split("/", 1)
        entry = saved.get(key)
        if not isinstance(entry, TensorStorageMetadata):
            raise WeightsError(source, f"it lacks {name}, one of the {what}", "give a checkpoint of this model")
        if tuple(entry.size) != tuple(shape):
            raise WeightsError(
                source, f"{name} has shape {tuple(entry.size)} there, here {shape}", "give a checkpoint of this model"
            )
    kinds = [key.split("/", 1)[1] for key in saved if key.startswith("class/")]
    if kinds != [snapshot.spec.training.optimizer]:
        raise WeightsError(
            source, f"its optimizer is {kinds}, the plan's {snapshot.spec.training.optimizer!r}", "plan with the same"
        )


def new_optimizer_state(snapshot: Snapshot, saved: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
    """Memory for the optimizer state that a checkpoint holds of this rank's parameters, by name and field."""
    by_name = {h.name: h for h in snapshot.held if h.stored.trainable}
    moments: dict[str, dict[str, Tensor]] = {}
    for name, field, entry in saved_moments(saved):
        if name in by_name:
            moments.setdefault(name, {})[field] = memory_for(by_name[name], field, entry)
    return moments


def saved_moments(saved: Mapping[str, object]) -> Iterator[tuple[str, str, TensorStorageMetadata]]:
    for key, entry in saved.items():
        if key.startswith("optimizer/") and isinstance(entry, TensorStorageMetadata):
            name, field = key.removeprefix("optimizer/").rsplit("/", 1)
            yield name, field, entry


def memory_for(held: HeldParameter, field: str, entry: TensorStorageMetadata) -> Tensor:
    dtype = entry.properties.dtype
    if entry.size == torch.Size(held.stored.type.shape) and field != "step":
        return torch.zeros_like(held.updated, dtype=dtype, requires_grad=False)
    return torch.zeros(entry.size, dtype=dtype)


def set_random_state(snapshot: Snapshot, state: Mapping[str, Tensor], saved: Mapping[str, object]) -> None:
    """Takes up each rank's random state, where the checkpoint's world had the same size."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if sum(key.startswith("rng/") for key in saved) != world:
        return
    torch.set_rng_state(state[f"rng/{rank}"])
    if f"device_rng/{rank}" in state:
        torch.get_device_module(snapshot.storage.device).set_rng_state(state[f"device_rng/{rank}"])
