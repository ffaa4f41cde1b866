"""Plans whose forward alone is run, and what one device computes: for test_evaluation, test_inference and attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import autoplan
from autoplan import Inference, Parallelism, Training
from autoplan.runtime.program import Program
from autoplan.trace.passes.precision import widened
from autoplan.verify.reference import loss_of, plain_experts, result_of
from tests.support.planning import parallelize_alone

Batch = dict[str, Tensor]
BOUND = 1e-10


@dataclass(frozen=True)
class Planned:
    """A plan in float64, exported, and the module that it was made of.

    batch  the planned one, by name
    """

    module: nn.Module
    loss_fn: Callable | None
    batch: Batch
    folder: Path
    weights: Mapping[str, Tensor]

    def rows(self, count: int, first: int = 0) -> Batch:
        return {name: value[first : first + count] for name, value in self.batch.items()}

    def loss(self, batch: Batch) -> float:
        """One device's, in evaluation."""
        self.module.eval()
        with torch.no_grad(), widened(), plain_experts(self.module):
            return float(loss_of(self.module, self.loss_fn, batch))

    def result(self, batch: Batch) -> Tensor:
        return result_of(self.module, self.loss_fn, batch)


def planned(
    folder: Path, module: nn.Module, batch: object, loss_fn: Callable | None = None,
    training: Training | Inference | None = None, cluster: str = "1x4 cpu", **pinned: object,
) -> Planned:  # fmt: skip
    """The module itself is taken to float64, its running statistics away from where they begin."""
    module, batch = with_statistics(module.double()), widened_batch(batch)
    training = training or Training(precision="fp64")
    parallelism = Parallelism(**pinned)  # type: ignore[arg-type]
    plan = parallelize_alone(module, cluster, batch, loss_fn=loss_fn, training=training, parallelism=parallelism)
    plan.export(folder)
    values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    names = [value.name for value in plan.record.model.batch]
    weights = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    return Planned(module, loss_fn, dict(zip(names, values, strict=True)), folder, weights)


def widened_batch(batch: object) -> dict[str, Tensor] | tuple[Tensor, ...]:
    """A batch in the float64 of the module."""
    assert isinstance(batch, Mapping | Sequence)

    def wide(value: Tensor) -> Tensor:
        return value.double() if value.is_floating_point() else value

    return {n: wide(v) for n, v in batch.items()} if isinstance(batch, Mapping) else tuple(map(wide, batch))


def with_statistics(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    for each in module.modules():
        if isinstance(getattr(each, "running_mean", None), Tensor):
            each.running_mean.normal_(generator=generator)  # type: ignore[union-attr, operator]
            each.running_var.uniform_(0.5, 2.0, generator=generator)  # type: ignore[union-attr, operator]
    return module


def loaded(planned_at: str, weights: Mapping[str, Tensor]) -> Program:
    program = autoplan.load(planned_at).program()
    program.load_weights(weights)
    return program


def evaluate(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> list:
    """On one rank: the losses of batches that all ranks give whole."""
    program = loaded(folder, weights)
    return [float(program.evaluate(batch)) for batch in batches]


def evaluate_own(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> float:
    """On one rank: the loss of the rows that each rank gives."""
    return float(loaded(folder, weights).evaluate(batches[rank]))


def forward(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> list:
    """On one rank: the results of batches that all ranks give whole."""
    program = loaded(folder, weights)
    return [program.forward(batch) for batch in batches]  # type: ignore[operator]


def bits(program: Program) -> dict[str, Tensor]:
    """All of a rank's state that a step reads or writes: parameters, gradients, buffers, optimizer, RNG, counters."""
    found = {f"{h.name}": h.values.clone() for h in program.held}
    found |= {f"{h.name} gradient": h.gradient.clone() for h in program.held if h.gradient is not None}
    found |= {name: value.clone() for name, value in program.stages.buffers.items()}
    for number, state in enumerate(program.optimizer.state.values()):
        found |= {f"{number} {k}": torch.as_tensor(v).clone() for k, v in state.items() if isinstance(v, Tensor)}
    return found | {"rng": torch.get_rng_state(), "steps": torch.tensor(program.steps)}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit for bit."""
    plain = {n: (v.to_local() if hasattr(v, "to_local") else v) for n, v in one.items()}
    others = {n: (v.to_local() if hasattr(v, "to_local") else v) for n, v in other.items()}
    return plain.keys() == others.keys() and all(torch.equal(v, others[n]) for n, v in plain.items())


def train(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch, few: Batch | None
) -> tuple[list[float], bool]:
    """On one rank: the losses of four steps, and whether evaluations left every bit as it was.

    few  evaluated beside the batch before the first step, between backward and update, and after each update
    """
    program, losses, kept = loaded(folder, weights), [], []

    def look() -> None:
        if few is not None:
            before = bits(program)
            program.evaluate(few)
            program.evaluate(batch)
            kept.append(same(before, bits(program)))

    look()
    for _ in range(4):
        losses.append(float(program.step(batch)))
        look()
        program.optimizer.step()
        look()
    return losses, all(kept)


def train_then_evaluate(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch, steps: int
) -> tuple[list[float], dict[str, Tensor]]:
    """On one rank: the loss in evaluation before and after some steps, and the whole state after them."""
    program = loaded(folder, weights)
    losses = [float(program.evaluate(batch))]
    for _ in range(steps):
        program.step(batch)
        program.optimizer.step()
    losses.append(float(program.evaluate(batch)))
    return losses, dict(program.full_state_dict())


def relative(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), 1e-30)


class Branching(nn.Module):
    """Adds something in training alone, by a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(16, 32), nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).relu()
        return self.head(hidden * 2 if self.training else hidden)


def sum_over_eight(output: Tensor, target: Tensor) -> Tensor:
    """A mean whose denominator is written out."""
    return (output - target).square().sum() / (8 * 12)


def sum_over_rows(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum() / output.shape[0]


def root_of_mean(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean().sqrt()


def in_batch(output: Tensor, target: Tensor) -> Tensor:
    """Each row against all: a loss that is no sum over rows."""
    return nn.functional.cross_entropy(output @ output.T, torch.arange(output.shape[0])) + 0 * target.sum()


def squeezing(output: Tensor, target: Tensor) -> Tensor:
    """At a single row the batch's dim goes, too."""
    return (output[:, :1].squeeze() - target[:, :1]).square().mean()


def features(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 16, generator=generator), torch.randn(8, 12, generator=generator)
