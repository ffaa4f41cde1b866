"""What a checkpoint holds, by torch.distributed.checkpoint: one key for each parameter, whatever the plan.

    parameters/<name>            the parameter
    optimizer/<name>/<field>     a tensor of its optimizer state: of the parameter's shape, or a count of steps
    buffers/<name>
    unread/<name>                what the program never reads: the first rank's
    stale/<name>                 the version of the parameter before, where gradients are of older ones (stale
    stale-2/<name>               servers), and those before that
    outer/<name>, outer_momentum/<name>   what a round of DiLoCo began with, and its outer optimizer's momentum
    error/<name>                 what compression has left out of its gradient, the sum over the ranks
    factor/<name>/<box>          PowerSGD's factor Q of the gradient of a box of it
    rng/<rank>                   the rank's random state, taken up where the world has the same size

and as plain values in state.json (``files``): the step, the learning rate, the scaler's and the schedule's
state, the user's own. What the program draws follows from the plan's seed and the step, and needs no state.

Names are the program's, the same for every plan of a model; parts are described as DTensors, so that another plan
reads what overlaps its own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from autoplan.runtime.optim.rowwise_adagrad import state_of_elements
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.parallel.whole_tensors import Storage
from autoplan.runtime.program_spec import ProgramSpec


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is taken of, or read into: one rank's state.

    steps   optimizer steps taken
    states  further parts of the training, by name, whose state is plain and the same on every rank: a loss scaler, a
            schedule
    unread  the first rank's values of what the program never reads
    beside  by kind and name, what an asynchronous rule or a compression keeps of each parameter, in its shape
    factors what a compression keeps of parts of them, by key
    draw    fills the factors of these keys as a training begins with them
    """

    spec: ProgramSpec
    storage: Storage
    held: Sequence[ShardedParameter]
    buffers: Mapping[str, Tensor]
    optimizer: Optimizer
    steps: int
    states: Mapping[str, Stateful] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    beside: Mapping[str, Mapping[str, Tensor]] = dataclasses.field(default_factory=dict)
    factors: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    draw: Callable[[Sequence[str]], None] = lambda keys: None


def spoken_for(snapshot: Snapshot) -> list[ShardedParameter]:
    """The parameters that this rank's stage saves; one tied between stages is saved by the first of them."""
    return [h for h in snapshot.held if snapshot.storage.speaks_for(h.stored)]


def model_state(snapshot: Snapshot, held: Sequence[ShardedParameter]) -> dict[str, Tensor]:
    """Views of parameters and buffers by key."""
    parameters = {f"parameters/{h.name}": snapshot.storage.dtensor(h, h.values) for h in held}
    buffers = {f"buffers/{name}": value for name, value in snapshot.buffers.items()}
    return parameters | buffers | {f"unread/{name}": value for name, value in snapshot.unread.items()}


def state_beside(snapshot: Snapshot, held: Sequence[ShardedParameter]) -> dict[str, Tensor]:
    """Views of what an asynchronous rule keeps, by key."""
    return {
        f"{kind}/{h.name}": snapshot.storage.dtensor(h, values[h.name])
        for kind, values in snapshot.beside.items()
        for h in held
        if h.name in values
    }


def optimizer_state(snapshot: Snapshot) -> dict[str, Tensor]:
    """Views of the optimizer's state by key; nothing before its first step."""
    states = snapshot.optimizer.state
    known = (h for h in spoken_for(snapshot) if h.updated in states)
    mine = {h.name: state_of_elements(snapshot.optimizer, h.updated) for h in known}
    return moments_by_key(snapshot, mine)


def moments_by_key(snapshot: Snapshot, moments: Mapping[str, Mapping[str, object]]) -> dict[str, Tensor]:
    by_name = {h.name: h for h in snapshot.held}
    found = {}
    for name, fields in moments.items():
        for field, value in fields.items():
            if isinstance(value, Tensor):
                found[f"optimizer/{name}/{field}"] = described(snapshot, by_name[name], value)
    return found


def described(snapshot: Snapshot, held: ShardedParameter, value: Tensor) -> Tensor:
    """A DTensor where the value has an element for each of the parameter's; a count of steps as it is."""
    return snapshot.storage.dtensor(held, local(value)) if value.shape == held.updated.shape and value.ndim else value


def random_state(snapshot: Snapshot) -> dict[str, Tensor]:
    random = {f"rng/{dist.get_rank()}": torch.get_rng_state()}
    if snapshot.storage.device.type != "cpu":
        random[f"device_rng/{dist.get_rank()}"] = torch.get_device_module(snapshot.storage.device).get_rng_state()
    return random


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Takes up this rank's random state, as far as it was read."""
    rank = dist.get_rank()
    if f"rng/{rank}" in state:
        torch.set_rng_state(state[f"rng/{rank}"])
    if f"device_rng/{rank}" in state:
        device = torch.accelerator.current_accelerator(check_available=True)
        torch.get_device_module(device).set_rng_state(state[f"device_rng/{rank}"])
