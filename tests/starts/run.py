"""A model planned, exported and run on four ranks, beside the same on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.verify.local_ranks import RankPool
from tests.starts.models import MODELS, Batch, Made
from tests.support.planning import parallelize_unproved

SEED, STEPS, RANKS = 7, 3, 4
TRAINING = Training(optimizer="adamw", learning_rate=1e-3, precision="fp64", compile=False)
SPLIT = Parallelism(dp=2, tp=2, pp=1, zero=1)


@dataclass(frozen=True)
class Seen:
    """One model, planned one way: parameters and buffers that differ at the start, and how far losses are off."""

    differing: tuple[str, ...]
    loss_error: float
    bound: float

    @property
    def equal(self) -> bool:
        return not self.differing and self.loss_error <= self.bound


def one_device(made: Made, batch: Batch) -> tuple[Mapping[str, Tensor], list[float]]:
    """The state dict that the user's function makes under the seed, and the losses of training from there."""
    torch.manual_seed(SEED)
    module = made.make()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    module.double()
    optimizer = torch.optim.AdamW(module.parameters(), lr=TRAINING.learning_rate)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(module, made, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return state, losses


def loss_of(module: nn.Module, made: Made, batch: Batch) -> Tensor:
    if isinstance(batch, Mapping):
        values = {name: doubled(value) for name, value in batch.items()}
        targets = [values.pop("target")] if "target" in values else []
        output = module(**values)
    else:
        *inputs, target = map(doubled, batch)
        output, targets = module(*inputs), [target]
    return output[1] if made.loss_fn is None else made.loss_fn(output, *targets)


def doubled(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def planned(made: Made, how: str, batch: Batch, folder: Path) -> Path:
    """The plan of the function, or of what it makes, exported."""
    torch.manual_seed(SEED)
    model = made.make if how == "function" else made.make()
    plan = parallelize_unproved(
        model, f"1x{RANKS} cpu", batch, loss_fn=made.loss_fn, training=TRAINING, parallelism=SPLIT
    )
    return plan.export(folder)


def trained(
    rank: int, world: int, folder: str, seed: int | None, batch: Batch
) -> tuple[Mapping[str, Tensor], list[float]]:
    """On each rank: the whole state dict at the start (rank 0), and the losses."""
    with autoplan.load(folder).program() as program:
        program.init_weights(seed)
        state, losses = dict(program.full_state_dict()), []
        for _ in range(STEPS):
            losses.append(program.step(batch).item())
            program.optimizer.step()
        return state, losses


def seen(name: str, how: str, pool: RankPool, folder: Path) -> Seen:
    """One model planned from its "function" or as a "module" with values, run, and compared with one device."""
    made = MODELS[name]
    torch.manual_seed(0)
    batch = made.batch()
    state, losses = one_device(made, batch)
    out = planned(made, how, batch, folder)
    found, run = pool.run(trained, str(out), SEED if how == "function" else None, batch)[0]
    differing = [key for key, value in state.items() if not torch.equal(found[key], value.to(found[key].dtype))]
    differing += sorted(found.keys() ^ state.keys())
    errors = [abs(one - other) / abs(other) for one, other in zip(run, losses, strict=True)]
    return Seen(tuple(differing), max(errors), made.bound)
