"""Whether a checkpoint is one of this plan's model and optimizer; and memory for the optimizer's state that it holds.

The precision that values are stored in may be another: they are converted as they are read, the optimizer's to what it
would keep of this plan's parameters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from autoplan.errors import WeightsError
from autoplan.ir.typed_program import StoredParameter
from autoplan.options import Training
from autoplan.runtime.checkpoint.keys import Snapshot
from autoplan.runtime.checkpoint.state_json import CheckpointState
from autoplan.runtime.elastic.stderr_messages import note
from autoplan.runtime.optim.asynchronous.diloco import BEGUN, OUTER_MOMENTUM
from autoplan.runtime.optim.asynchronous.weight_stashing import STALE
from autoplan.runtime.optim.frozen_lamb import OF_FROZEN, FrozenVarianceLamb
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.optim.rowwise_adagrad import rule_of
from autoplan.runtime.optim.streamed_optimizer import state_memory
from autoplan.runtime.parallel.compression.compressor import ERROR
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

BESIDE = {
    BEGUN: "what a round of DiLoCo began with", OUTER_MOMENTUM: "DiLoCo's outer momentum",
    STALE: "older versions of each parameter",
}  # fmt: skip
"""What asynchronous rules keep of parameters, by kind (``checkpoint.keys``)."""
TOGETHER = " and "
"""Between the names of optimizers that update a model together."""
OF_THIS_MODEL = "give a checkpoint of this model"


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
    wanted_kinds = snapshot.spec.training.optimizers
    if {*state.optimizer.split(TOGETHER)} != {*wanted_kinds}:  # which parameters have which is asked below
        said = f"its optimizer is {state.optimizer!r}, the plan's {TOGETHER.join(wanted_kinds)!r}"
        first, *others = state.optimizer.split(TOGETHER)
        of_groups = f" and groups with {TOGETHER.join(map(repr, others))}" if others else ""
        raise WeightsError(source, said, f"plan with Training(optimizer={first!r}){of_groups}")
    check_moments(snapshot, saved, source)
    check_dtypes(snapshot, saved, source)
    lacking = snapshot.states.keys() - state.states.keys()
    if lacking:
        raise WeightsError(
            source, f"it holds no state of the {sorted(lacking)[0]}", "plan with the precision and schedule that it had"
        )


def check_dtypes(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """WeightsError where a value is stored as something that this plan's isn't made of: integers for floats."""
    for key, here in own_dtypes(snapshot).items():
        entry = saved.get(key)
        there = entry.properties.dtype if isinstance(entry, TensorStorageMetadata) else here
        if there != here and not (there.is_floating_point and here.is_floating_point):
            raise WeightsError(source, f"{key.split('/', 1)[1]} is {there} there, here {here}", OF_THIS_MODEL)


def own_dtypes(snapshot: Snapshot) -> dict[str, torch.dtype]:
    """How this rank stores parameters and buffers, by their keys."""
    found = {f"parameters/{held.name}": held.values.dtype for held in snapshot.held}
    return found | {f"buffers/{name}": value.dtype for name, value in snapshot.buffers.items()}


def tell_conversions(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """The first rank tells where values are stored in another precision there."""
    for key, here in own_dtypes(snapshot).items():
        entry = saved.get(key)
        if isinstance(entry, TensorStorageMetadata) and entry.properties.dtype != here and dist.get_rank() == 0:
            said = f"{key.split('/', 1)[1]} is {entry.properties.dtype} there, here {here}"
            note(f"{source}: {said}: such values, and the optimizer's, are converted")
            return


def tell_rules(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """The first rank tells what an asynchronous rule kept of parameters and this plan has no use for, and what this
    plan's rule keeps and the checkpoint lacks."""
    there, here = {key.partition("/")[0] for key in saved}, snapshot.beside.keys()
    dropped, lacking = words_of(there - here), words_of(here - there)
    if dropped and dist.get_rank() == 0:
        note(f"{source}: it holds {' and '.join(dropped)}: dropped, for the plan's steps have none")
    if lacking and dist.get_rank() == 0:
        note(f"{source}: it lacks {' and '.join(lacking)}: these begin anew, from the parameters that it holds")


def tell_new_states(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """The first rank tells which parameters have begun without optimizer state, where others have theirs: another
    optimizer, which keeps none, may have updated them there."""
    training, known = snapshot.spec.training, {name for name, _, _ in saved_moments(saved)}
    if len(training.optimizers) == 1 or not known or dist.get_rank() != 0:
        return
    lacking = [p for p in snapshot.spec.lowered.parameters if p.trainable and p.name not in known]
    kept = {kind: fields_kept(*kind) for kind in {kind_of(training, p) for p in lacking}}
    if new := sorted(p.name for p in lacking if kept[kind_of(training, p)]):
        more = f" and {len(new) - 1} more" if len(new) > 1 else ""
        note(f"{source}: it has no optimizer state of {new[0]}{more}, which begins anew")


def words_of(kinds: Iterable[str]) -> list[str]:
    """What rules keep of these kinds, each once; of an older version, "stale-2", as of "stale"."""
    known = (BESIDE.get(kind.partition("-")[0], "") for kind in sorted(kinds))
    return list(dict.fromkeys(filter(None, known)))


def check_moments(snapshot: Snapshot, saved: Mapping[str, object], source: Path) -> None:
    """WeightsError where the optimizer, by its options, keeps more of a parameter than the checkpoint has."""
    found: dict[str, set[str]] = {}
    for name, field, _ in saved_moments(saved):
        found.setdefault(name, set()).add(field)
    kinds = {p.name: kind_of(snapshot.spec.training, p) for p in snapshot.spec.lowered.parameters}
    kept = {kind: fields_kept(*kind) for kind in {kinds[name] for name in found if name in kinds}}
    for name, fields in found.items():
        lacking = sorted(kept[kinds[name]].keys() - fields) if name in kinds else []
        if lacking:
            remedy = "plan with the optimizer_options that it had"
            raise WeightsError(source, f"it has no {lacking[0]} of {name}", remedy)


def kind_of(training: Training, stored: StoredParameter) -> tuple[Training, int]:
    """Of parameters of which the optimizer keeps the same: the training as it says of their own, and how many dims."""
    return training.updating(training.group_of(stored.names)), len(stored.type.shape)


def fields_kept(training: Training, dims: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.dtype]:
    """What the planned optimizer has of a parameter of so many dims after an update, and in which dtype."""
    parameter = nn.Parameter(torch.zeros((2,) * dims, dtype=dtype))
    optimizer = build_optimizer([parameter], replace(training, lr_schedule=None))
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter]
    return {field: value.dtype for field, value in state.items() if isinstance(value, Tensor)}


def new_optimizer_state(snapshot: Snapshot, saved: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
    """Memory for the optimizer state that a checkpoint holds of this rank's parameters, by name and field."""
    by_name = {h.name: h for h in snapshot.held if h.stored.trainable and h.here}
    moments: dict[str, dict[str, Tensor]] = {}
    kept: dict[tuple[Training, int, torch.dtype], dict[str, torch.dtype]] = {}
    frozen = isinstance(snapshot.optimizer, FrozenVarianceLamb)
    dropped = () if frozen else OF_FROZEN  # stale once the variance moves on
    for name, field, entry in saved_moments(saved):
        if name in by_name and field not in dropped:
            held = by_name[name]
            kind = *kind_of(snapshot.spec.training, held.stored), held.updated.dtype
            if kind not in kept:
                kept[kind] = fields_kept(*kind)
            dtype = kept[kind].get(field, entry.properties.dtype)
            moments.setdefault(name, {})[field] = memory_for(snapshot.optimizer, held, field, entry, dtype)
    return moments


def saved_moments(saved: Mapping[str, object]) -> Iterator[tuple[str, str, TensorStorageMetadata]]:
    for key, entry in saved.items():
        if key.startswith("optimizer/") and isinstance(entry, TensorStorageMetadata):
            name, field = key.removeprefix("optimizer/").rsplit("/", 1)
            yield name, field, entry


def memory_for(
    optimizer: Optimizer, held: ShardedParameter, field: str, entry: TensorStorageMetadata, dtype: torch.dtype
) -> Tensor:
    if entry.size == torch.Size(held.stored.type.shape) and field != "step":
        return state_memory(optimizer, held.updated, dtype)
    counted_there = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    return torch.zeros(entry.size, dtype=dtype, device=held.updated.device if counted_there else None)


def take_moments(snapshot: Snapshot, moments: Mapping[str, dict[str, Tensor]], saved: Mapping[str, object]) -> None:
    """Gives the optimizer the state that was read, and an asynchronous rule or a compression what it begins
    with."""
    for held in snapshot.held:
        if held.name in moments:
            snapshot.optimizer.state[held.updated] = moments[held.name]
            rowwise = rule_of(snapshot.optimizer, held.updated)
            if rowwise is not None:
                rowwise.row_sums(held.updated)  # one for each row again
        else:  # the checkpoint is of before its first update
            snapshot.optimizer.state.pop(held.updated, None)
        for kind, values in snapshot.beside.items():
            if held.name in values and f"{kind}/{held.name}" not in saved:  # of a plan without such a rule
                values[held.name].copy_(0 * held.values if kind in (OUTER_MOMENTUM, ERROR) else held.values)
