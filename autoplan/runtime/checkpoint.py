"""What a checkpoint holds, by torch.distributed.checkpoint: one key for each parameter, whatever the plan.

    parameters/<name>            the parameter
    optimizer/<name>/<field>     a tensor of its optimizer state: of the parameter's shape, or a count of steps
    buffers/<name>
    unread/<name>                what the program never reads: the first rank's
    stale/<name>                 the version of the parameter before, where gradients are of that one (PipeDream-2BW)
    rng/<rank>                   the rank's random state, taken up where the world has the same size

and as plain values in state.json (``checkpoint_files``): the step, the learning rate, the scaler's and the schedule's
state, the user's own. What the program draws follows from the plan's seed and the step, and needs no state.

Names are the program's, the same for every plan of a model; parts are described as DTensors, so that another plan
reads what overlaps its own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from autoplan.errors import WeightsError
from autoplan.options import Training
from autoplan.runtime import plain
from autoplan.runtime.checkpoint_files import CheckpointState, check_keep, complete, latest_checkpoint
from autoplan.runtime.held import HeldParameter, local
from autoplan.runtime.optimizer import build_optimizer
from autoplan.runtime.saving import Saver, failures
from autoplan.runtime.spec import ProgramSpec
from autoplan.runtime.state import Storage
from autoplan.runtime.together import together

__all__ = ["CheckpointState", "Snapshot", "latest_checkpoint", "load", "save"]

OF_THIS_MODEL = "give a checkpoint of this model"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is taken of, or read into: one rank's state.

    steps   optimizer steps taken
    states  further parts of the training, by name, whose state is plain and the same on every rank: a loss scaler, a
            schedule
    unread  the first rank's values of what the program never reads
    stale   by name, the version of the parameters before the newest, where gradients are of that one
    """

    spec: ProgramSpec
    storage: Storage
    held: Sequence[HeldParameter]
    buffers: Mapping[str, Tensor]
    optimizer: Optimizer
    steps: int
    states: Mapping[str, Stateful] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    stale: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


def save(
    saver: Saver,
    snapshot: Snapshot,
    folder: str | os.PathLike,
    extra: Mapping[str, object] | None = None,
    keep: int | None = None,
    asynchronous: bool = False,
) -> None:
    """Writes a checkpoint; every rank calls it. See ``Program.save_checkpoint``."""
    target = Path(folder).absolute()
    states = {name: part.state_dict() for name, part in snapshot.states.items()}
    state = CheckpointState(
        step=snapshot.steps,
        world=dist.get_world_size(),
        optimizer=snapshot.spec.training.optimizer,
        learning_rate=float(snapshot.optimizer.param_groups[0]["lr"]),
        states=states,
        extra=dict(extra or {}),
    )
    check_keep(target, keep)
    for what in (state.states, state.extra):
        plain.encode(dict(what), "extra" if what is state.extra else "states")
    tensors = model_state(snapshot, spoken_for(snapshot)) | optimizer_state(snapshot) | random_state(snapshot)
    tensors |= stale_state(snapshot, spoken_for(snapshot))
    saver.save(tensors, target, state, keep, asynchronous)


def load(snapshot: Snapshot, folder: str | os.PathLike) -> CheckpointState:
    """Reads a checkpoint into the parameters, buffers and optimizer. Every rank calls it.

    WeightsError, on all and before anything is changed, where it is not whole or not of this model.
    """
    source, saved_state, saved = together(lambda: examined(snapshot, Path(folder)))
    moments = new_optimizer_state(snapshot, saved)
    state = model_state(snapshot, snapshot.held) | moments_by_key(snapshot, moments) | random_state(snapshot)
    state |= stale_state(snapshot, snapshot.held)
    state = {key: value for key, value in state.items() if key in saved}
    try:
        dcp.load(state, checkpoint_id=source)
    except CheckpointException as error:
        raise WeightsError(
            source, f"it can't be read: {failures(error)}", "parameters may be partly its own: load another"
        ) from error
    for held in snapshot.held:
        if held.name in moments:
            snapshot.optimizer.state[held.updated] = moments[held.name]
        else:  # the checkpoint is of before its first update
            snapshot.optimizer.state.pop(held.updated, None)
        if held.name in snapshot.stale and f"stale/{held.name}" not in saved:  # of a plan that has one version
            snapshot.stale[held.name].copy_(held.values)
    for group in snapshot.optimizer.param_groups:
        group["lr"] = saved_state.learning_rate
    for name, part in snapshot.states.items():
        part.load_state_dict(saved_state.states[name])  # type: ignore[arg-type]
    if saved_state.world == dist.get_world_size():
        set_random_state(snapshot, state)
    return saved_state


def examined(snapshot: Snapshot, folder: Path) -> tuple[Path, CheckpointState, Mapping[str, object]]:
    """Where the checkpoint is, and what it says that it holds; WeightsError where it isn't whole, or another's."""
    source, state = complete(folder)
    try:
        saved = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    except Exception as error:  # whatever unpickling a damaged file comes to
        raise WeightsError(source, f"its .metadata can't be read ({error!r})", "give another checkpoint") from error
    check(snapshot, state, saved, source)
    return source, state, saved


def spoken_for(snapshot: Snapshot) -> list[HeldParameter]:
    """The parameters that this rank's stage saves; one tied between stages is saved by the first of them."""
    return [h for h in snapshot.held if snapshot.storage.speaks_for(h.stored)]


def model_state(snapshot: Snapshot, held: Sequence[HeldParameter]) -> dict[str, Tensor]:
    """Views of parameters and buffers by key."""
    parameters = {f"parameters/{h.name}": snapshot.storage.dtensor(h, h.values) for h in held}
    buffers = {f"buffers/{name}": value for name, value in snapshot.buffers.items()}
    return parameters | buffers | {f"unread/{name}": value for name, value in snapshot.unread.items()}


def stale_state(snapshot: Snapshot, held: Sequence[HeldParameter]) -> dict[str, Tensor]:
    """Views of the parameters' older version by key."""
    older = snapshot.stale
    return {f"stale/{h.name}": snapshot.storage.dtensor(h, older[h.name]) for h in held if h.name in older}


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


def random_state(snapshot: Snapshot) -> dict[str, Tensor]:
    random = {f"rng/{dist.get_rank()}": torch.get_rng_state()}
    if snapshot.storage.device.type != "cpu":
        random[f"device_rng/{dist.get_rank()}"] = torch.get_device_module(snapshot.storage.device).get_rng_state()
    return random


def check(snapshot: Snapshot, state: CheckpointState, saved: Mapping[str, object], source: Path) -> None:
    """WeightsError where the checkpoint isn't one of this model and optimizer.

    Every rank asks for everything, its own or not.
    """
    lowered = snapshot.spec.lowered
    wanted = {f"parameters/{p.name}": p.type.shape for p in lowered.parameters}
    wanted |= {f"buffers/{b.name}": b.type.shape for b in lowered.buffers}
    unread = {f"unread/{u.name}": u.type.shape for u in snapshot.spec.unread}
    wanted |= {key: shape for key, shape in unread.items() if key in saved}
    for key, shape in wanted.items():
        what, name = key.split("/", 1)
        entry = saved.get(key)
        if not isinstance(entry, TensorStorageMetadata):
            raise WeightsError(source, f"it lacks {name}, one of the {what}", OF_THIS_MODEL)
        if tuple(entry.size) != tuple(shape):
            raise WeightsError(source, f"{name} has shape {tuple(entry.size)} there, here {shape}", OF_THIS_MODEL)
    wanted_kind = snapshot.spec.training.optimizer
    if state.optimizer != wanted_kind:
        said = f"its optimizer is {state.optimizer!r}, the plan's {wanted_kind!r}"
        raise WeightsError(source, said, "plan with the same")
    check_moments(snapshot, saved, source)
    lacking = snapshot.states.keys() - state.states.keys()
    if lacking:
        raise WeightsError(
            source, f"it holds no state of the {sorted(lacking)[0]}", "plan with the precision and schedule that it had"
        )


def check_moments(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """WeightsError where the optimizer, by its options, keeps more of a parameter than the checkpoint has."""
    found: dict[str, set[str]] = {}
    for name, field, _ in saved_moments(saved):
        found.setdefault(name, set()).add(field)
    dims = {p.name: len(p.type.shape) for p in snapshot.spec.lowered.parameters}
    kept = {n: fields_kept(snapshot.spec.training, n) for n in {dims[name] for name in found if name in dims}}
    for name, fields in found.items():
        lacking = sorted(kept[dims[name]] - fields) if name in dims else []
        if lacking:
            remedy = "plan with the optimizer_options that it had"
            raise WeightsError(source, f"it has no {lacking[0]} of {name}", remedy)


def fields_kept(training: Training, dims: int) -> set[str]:
    """What the planned optimizer has of a parameter of so many dims after an update."""
    parameter = nn.Parameter(torch.zeros((2,) * dims))
    optimizer = build_optimizer([parameter], replace(training, schedule=None))
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {field for field, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}


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


def set_random_state(snapshot: Snapshot, state: Mapping[str, Tensor]) -> None:
    """Takes up this rank's random state."""
    rank = dist.get_rank()
    torch.set_rng_state(state[f"rng/{rank}"])
    if f"device_rng/{rank}" in state:
        torch.get_device_module(snapshot.storage.device).set_rng_state(state[f"device_rng/{rank}"])
