"""A checkpoint saved and loaded: what it holds (``keys``) by DCP's protocol, what is plain by state.json.

A save agrees first: every rank has to say the same folder, step and extra. A load looks first: at the files' lengths,
at every byte's checksum, at whether the checkpoint fits the plan; only then does anything in memory change.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from autoplan.errors import DivergedError, WeightsError
from autoplan.runtime.checkpoint import plain_values
from autoplan.runtime.checkpoint.compatibility import (
    TOGETHER,
    check,
    new_optimizer_state,
    take_moments,
    tell_conversions,
    tell_new_states,
    tell_rules,
)
from autoplan.runtime.checkpoint.compressed import settle_factors
from autoplan.runtime.checkpoint.groups import saved_groups, take
from autoplan.runtime.checkpoint.index import REMEDY, read_index
from autoplan.runtime.checkpoint.keys import (
    Snapshot,
    model_state,
    moments_by_key,
    optimizer_state,
    random_state,
    set_random_state,
    spoken_for,
    state_beside,
)
from autoplan.runtime.checkpoint.plain_state import schedule_data, taken_plain_parts
from autoplan.runtime.checkpoint.saving import Saver, failures
from autoplan.runtime.checkpoint.state_json import (
    CheckpointState,
    check_keep,
    complete,
    latest_checkpoint,
    latest_other,
)
from autoplan.runtime.checkpoint.store import CheckpointReader
from autoplan.runtime.collectives.objects import from_all, together
from autoplan.runtime.optim.updates import finite
from autoplan.runtime.parallel.sharded_parameter import local

T = TypeVar("T")

__all__ = ["CheckpointState", "Snapshot", "latest_checkpoint", "load", "save"]


def save(
    saver: Saver, snapshot: Snapshot, folder: str | os.PathLike, diverged: Callable[[str, str], DivergedError],
    extra: Mapping[str, object] | None = None, keep: int | None = None, asynchronous: bool = False,
) -> None:  # fmt: skip
    """Writes a checkpoint; every rank calls it. See ``Program.save_checkpoint``.

    diverged  makes the error of a value that isn't finite, from what it is and why
    """
    saver.wait()
    target = together(lambda: plain_values.path_of(folder, "a checkpoint's folder")).absolute()
    state = together(lambda: state_of(snapshot, target, extra, keep))
    text = json.dumps(plain_values.encode(state.extra, "extra"), sort_keys=True)
    saver.agree(folder=str(target), step=state.step, keep=keep, asynchronous=bool(asynchronous), extra=text)
    groups = saved_groups(snapshot.optimizer, snapshot.held, saver.peers())
    tensors = model_state(snapshot, spoken_for(snapshot)) | optimizer_state(snapshot) | random_state(snapshot)
    tensors |= state_beside(snapshot, spoken_for(snapshot)) | dict(snapshot.factors)
    if asynchronous:
        tensors = saver.copies.of(tensors)
    look = partial(check_finite, tensors, diverged)
    saver.save(tensors, target, replace(state, groups=groups), keep, asynchronous, look)


def check_finite(tensors: Mapping[str, Tensor], diverged: Callable[[str, str], DivergedError]) -> None:
    """DivergedError where what training goes on from isn't finite; a buffer may be a mask of infinities."""
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "parameters" and not finite(local(value)):
            raise diverged(f"parameters that aren't finite: {name}", "the last gradients weren't")
        if kind == "optimizer" and not finite(local(value)):
            name, _, field = name.rpartition("/")
            said = f"optimizer state that isn't finite: {field} of {name}"
            raise diverged(said, "the last gradients overflowed in it")


def state_of(snapshot: Snapshot, target: Path, extra: Mapping[str, object] | None, keep: int | None) -> CheckpointState:
    """What is plain of this moment, copied: whoever holds the same lists may change them from here on."""
    check_keep(target, keep)
    given = plain_values.frozen(dict(extra or {}), "extra")
    assert isinstance(given, dict)
    return CheckpointState(
        step=snapshot.steps,
        world=dist.get_world_size(),
        optimizer=TOGETHER.join(snapshot.spec.training.optimizers),
        learning_rate=float(snapshot.optimizer.param_groups[0]["lr"]),
        schedule=schedule_data(snapshot.spec.training.lr_schedule),
        states={name: plain_values.frozen(part.state_dict(), "states") for name, part in snapshot.states.items()},
        extra=given,
    )


@dataclass(frozen=True)
class Found:
    """A checkpoint that fits: where it is, and what it says that it holds."""

    source: Path
    state: CheckpointState
    reader: CheckpointReader

    @property
    def entries(self) -> Mapping[str, object]:
        """By key, as DCP's planner knows tensors."""
        return self.reader.metadata.state_dict_metadata

    def shape(self, key: str) -> tuple[int, ...] | None:
        entry = self.entries.get(key)
        return tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None


def load(saver: Saver, snapshot: Snapshot, folder: str | os.PathLike) -> CheckpointState:
    """Reads a checkpoint into the parameters, buffers and optimizer. Every rank calls it.

    WeightsError, on all and before anything is changed, where it is not whole or not of this model.
    """
    saver.wait()
    place = together(lambda: plain_values.path_of(folder, "a checkpoint's folder"))
    found = together(lambda: or_another(lambda: examined(snapshot, place), place))
    same_everywhere(found, saver)
    moments = new_optimizer_state(snapshot, found.entries)
    state = model_state(snapshot, snapshot.held) | moments_by_key(snapshot, moments)
    state |= state_beside(snapshot, snapshot.held)
    random = random_state(snapshot) if found.state.world == dist.get_world_size() else {}
    alike = (random | dict(snapshot.factors)).items()
    state |= {key: value for key, value in alike if found.shape(key) == tuple(value.shape)}
    state = {key: value for key, value in state.items() if key in found.entries}
    together(lambda: or_another(lambda: found.reader.check(state), place))
    options = together(lambda: taken_plain_parts(snapshot, found.state, found.source))
    tell_conversions(snapshot, found.entries, found.source)
    tell_rules(snapshot, found.entries, found.source)
    tell_new_states(snapshot, found.entries, found.source)
    try:
        dcp.load(state, storage_reader=found.reader, planner=DefaultLoadPlanner(flatten_state_dict=False))
    except CheckpointException as error:
        raise WeightsError(
            found.source, f"it can't be read: {failures(error)}", "parameters may be partly its own: load another"
        ) from error
    take_moments(snapshot, moments, found.entries)
    settle_factors(snapshot, state, found.entries, found.source)
    take(snapshot.optimizer, options)
    set_random_state(state)
    saver.came_from(found.state, place)
    return found.state


def or_another(look: Callable[[], T], folder: Path) -> T:
    """What ``look`` finds; of a damaged checkpoint its WeightsError names the one to load instead, where there is."""
    try:
        return look()
    except WeightsError as error:
        other = latest_other(folder) if error.remedy == REMEDY else None
        if other is None:
            raise
        remedy = f"give the latest of the others, {other}; `autoplan checkpoint verify {folder.parent}` tells whether "
        raise WeightsError(error.value, error.cause, f"{remedy}its bytes are whole") from None


def examined(snapshot: Snapshot, folder: Path) -> Found:
    """WeightsError where the checkpoint isn't whole, as far as its files' lengths tell, or is another model's."""
    source, state = complete(folder)
    found = Found(source, state, CheckpointReader(source, read_index(source, state.tensors, state.files)))
    check(snapshot, state, found.entries, source)
    return found


def same_everywhere(found: Found, saver: Saver) -> None:
    """WeightsError, on every rank, where ranks see different checkpoints under that name."""
    everyone = from_all((found.state.id, found.state.step, str(found.source)), saver.peers())
    first = everyone[0]
    for rank, (identity, step, source) in enumerate(everyone):
        if identity != first[0]:
            said = f"rank 0 sees a checkpoint of step {first[1]} there, rank {rank} another, of step {step}: {source}"
            raise WeightsError(first[2], said, "give every rank the same, in one folder that all ranks see")
