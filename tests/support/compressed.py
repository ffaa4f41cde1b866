"""Rules of compressed gradients in one process, with nothing but torch, the user's module and what PowerSGD draws.

Each replica's summand of a gradient, on its own rows, is compressed with its own error; each box of a parameter that
ranks hold by itself. PowerSGD (Vogels et al. 2019, algorithm 1) is linear in the gradients (their lemma 3), so that the
whole batch's gradient with one error is what all ranks' compression comes to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from autoplan.ir.buckets import Compression
from autoplan.plan import Plan
from autoplan.runtime.parallel.compression.powersgd import first_factor
from autoplan.runtime.parallel.own_box import Part, part_of
from tests.support.asynchronous import Batch, How, Simulated, replica_rows

BLOCK = 256  # of elements that share a scale
Rule = Callable[[list[Tensor]], tuple[Tensor, list[Tensor]]]
"""What each replica has to send of a box -> (the gradient that all go on with, what each leaves out)."""


@dataclass(frozen=True)
class Box:
    """A part of a parameter of the user's module.

    until  the step from which on it is summed whole, and what was left out of it is dropped
    """

    name: str
    slices: tuple[slice, ...]
    rule: Rule
    until: int = 10**9


@dataclass(frozen=True)
class Replicas:
    """Who has which rows, where that matters.

    counted  how many labels of a batch its mean is over
    """

    count: int
    microbatches: int
    counted: Callable[[Batch], int]


@dataclass(frozen=True)
class Run:
    """How a simulation goes.

    start        steps with whole gradients before compression
    saves        by the step after which a checkpoint is taken, who goes on: each with its share of the errors
    accumulated  batches whose gradients, each compressed by itself, make one update
    """

    start: int = 0
    saves: Mapping[int, Replicas] = field(default_factory=dict)
    accumulated: int = 1


def compressed(
    module: nn.Module, batches: Sequence[Batch], boxes: Sequence[Box], how: How, replicas: Replicas | None = None,
    run: Run | None = None,
) -> Simulated:  # fmt: skip
    """One process' steps; ``replicas`` None: the whole batch's gradients are compressed."""
    module, run = copy.deepcopy(module), run or Run()
    optimizer, parameters = how.optimizer(module), dict(module.named_parameters())
    errors = [[torch.zeros_like(parameters[box.name][box.slices])] * count_of(replicas) for box in boxes]
    losses = []
    for number, batch in enumerate(batches):
        step, first = number // run.accumulated, number % run.accumulated == 0
        loss, shares = shares_of(module, batch, how, replicas)
        whole = {name: torch.stack([each[name] for each in shares]).sum(0) for name in parameters}
        for n, box in enumerate(boxes):
            if run.start <= step < box.until:
                each = [share[box.name][box.slices] for share in shares]
                if isinstance(optimizer, FrozenAdam):
                    each = optimizer.parts(box, each)
                sent, errors[n] = box.rule([one + e for one, e in zip(each, errors[n], strict=True)])
                if isinstance(optimizer, FrozenAdam):
                    sent = optimizer.gradient(box, sent)
                whole[box.name][box.slices] = sent
        for name, parameter in parameters.items():
            before = None if first else parameter.grad
            parameter.grad = whole[name] if before is None else before + whole[name]
        losses.append(loss)
        if (number + 1) % run.accumulated == 0:
            how.update(module, optimizer)
        if number + 1 in run.saves:
            replicas = run.saves[number + 1]
            totals = [torch.stack(each).sum(0) for each in errors]
            for n, box in enumerate(boxes):
                if isinstance(box.rule, OneBit):  # who adds up gives what was left out there, too
                    totals[n], box.rule.left = totals[n] + box.rule.left, torch.zeros(())
            errors = [[total / replicas.count] * replicas.count for total in totals]
    return Simulated(losses, {n: v.clone() for n, v in module.state_dict().items() if v.is_floating_point()})


def count_of(replicas: Replicas | None) -> int:
    return replicas.count if replicas else 1


def shares_of(
    module: nn.Module, batch: Batch, how: How, replicas: Replicas | None
) -> tuple[float, list[dict[str, Tensor]]]:
    """The batch's loss, and what each replica has of its gradients."""
    rows = [batch] if replicas is None else replica_rows(batch, replicas.count, replicas.microbatches)
    total, shares, loss = 1 if replicas is None else replicas.counted(batch), [], 0.0
    for mine in rows:
        weight = (1 if replicas is None else replicas.counted(mine)) / total
        found = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
        if weight:
            part = how.loss(module, mine) * weight
            gradients = torch.autograd.grad(part, list(module.parameters()), allow_unused=True)
            given = zip(found, gradients, strict=True)
            found |= {name: gradient.clone() for name, gradient in given if gradient is not None}
            loss += float(part.detach())
        shares.append(found)
    return loss, shares


def rule_of(how: Compression, name: str, part: Part, seed: int) -> Rule:
    """Of a box of a stored parameter."""
    if how.kind == "powersgd":
        return LowRank(first_factor(name, part, how.rank, seed, torch.float64))
    if how.one_bit:
        return OneBit()
    return {"int8": in_int8, "fp8": in_fp8}.get(how.kind) or TopK(how.rate)


class LowRank:
    """``factor`` [columns, rank]: Q before the first step."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor.clone()

    def __call__(self, given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        (whole,) = given
        matrix = whole.flatten(1)
        left = torch.linalg.qr(matrix @ self.factor).Q
        self.factor = matrix.t() @ left
        sent = (left @ self.factor.t()).view_as(whole)
        return sent, [whole - sent]


@dataclass(frozen=True)
class TopK:
    rate: float

    def __call__(self, given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        count = math.ceil(self.rate * given[0].numel())
        limits = [one.abs().flatten().sort(descending=True).values[count - 1] for one in given]
        sent = [one * (one.abs() >= limit) for one, limit in zip(given, limits, strict=True)]
        return sum(sent[1:], sent[0]), [one - part for one, part in zip(given, sent, strict=True)]


class OneBit:
    """Signs of what each replica has of a momentum, and of their sum, with ``left`` of it before."""

    def __init__(self) -> None:
        self.left = torch.zeros(())

    def __call__(self, given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        parts = [signs(one) for one in given]
        total = sum(parts[1:], parts[0]) + self.left
        sent = signs(total)
        self.left = total - sent
        return sent, [one - part for one, part in zip(given, parts, strict=True)]


def signs(x: Tensor) -> Tensor:
    """Of each run of 256 elements, with the mean of their sizes, which is kept in float32."""
    found = []
    for block in x.flatten().split(BLOCK):
        size = float(block.abs().mean().float())
        found.append(torch.where(block >= 0, size, -size).to(x.dtype))
    return torch.cat(found).view_as(x)


class FrozenAdam(torch.optim.Optimizer):
    """AdamW written out, whose variance stays after ``start`` updates (Tang et al. 2021, algorithm 1)."""

    def __init__(self, module: nn.Module, start: int, rate: float) -> None:
        super().__init__(module.parameters(), {})
        self.named, self.start, self.rate, self.steps = dict(module.named_parameters()), start, rate, 0
        self.m = {name: torch.zeros_like(p) for name, p in self.named.items()}
        self.v = {name: torch.zeros_like(p) for name, p in self.named.items()}

    def parts(self, box: Box, each: list[Tensor]) -> list[Tensor]:
        """Of the momentum that the replicas' gradients make."""
        return [0.9 * self.m[box.name][box.slices] / len(each) + 0.1 * one for one in each]

    def gradient(self, box: Box, momentum: Tensor) -> Tensor:
        """By which Adam's becomes this one; where nothing has a variance it stays."""
        kept = momentum.masked_fill(self.v[box.name][box.slices] == 0, 0.0)
        return (kept - 0.9 * self.m[box.name][box.slices]) / 0.1

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        settled = min(self.steps, self.start)
        for name, parameter in self.named.items():
            gradient = parameter.grad
            assert gradient is not None
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            if self.steps <= self.start:
                self.v[name] = 0.999 * self.v[name] + 0.001 * gradient**2
            ratio = self.m[name] / (1 - 0.9**self.steps) / ((self.v[name] / (1 - 0.999**settled)).sqrt() + 1e-8)
            parameter -= self.rate * (0.01 * parameter + ratio)


class FrozenLamb(FrozenAdam):
    """LAMB written out, whose variance and ratios stay after ``start`` updates (Li et al. 2021, algorithm 1)."""

    def __init__(self, module: nn.Module, start: int, rate: float) -> None:
        super().__init__(module, start, rate)
        self.fresh: dict[str, Tensor] = {}
        self.ratio = dict.fromkeys(self.named, 0.0)
        self.factor = dict.fromkeys(self.named, 1.0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        steps, settled = self.steps, min(self.steps, self.start)
        for name, parameter in self.named.items():
            gradient = parameter.grad
            assert gradient is not None
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            if steps <= self.start:
                self.v[name] = self.fresh[name] = 0.999 * self.v[name] + 0.001 * gradient**2
            else:
                self.fresh[name] = 0.999 * self.fresh[name] + 0.001 * gradient**2
            deviation = (self.v[name] / (1 - 0.999**settled)).sqrt() + 1e-6
            plain = self.m[name] / (1 - 0.9**steps) / deviation
            update = plain + 0.01 * parameter
            norm, size = float(parameter.norm()), float(update.norm())
            scale = norm / size if norm and size else 1.0
            if steps <= self.start:
                self.ratio[name] = 0.9 * self.ratio[name] + 0.1 * min(max(scale, 0.01), 10.0)
            else:
                real = (self.fresh[name] / (1 - 0.999**steps)).sqrt() + 1e-6
                share = min(1.0, float(plain.norm()) / size) if size else 1.0
                factor = float((deviation / real).max()) * share + 1 - share
                last = self.factor[name]
                factor = min(max(min(max(factor, 0.5), 4.0), 0.9 * last), 1.1 * last)
                self.factor[name], scale = factor, self.ratio[name] / (1 - 0.9**self.start) * factor
            parameter -= self.rate * scale * update


def in_int8(given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    parts = [rounded(one) for one in given]
    return rounded(sum(parts[1:], parts[0])), [torch.zeros_like(one) for one in given]


def rounded(x: Tensor) -> Tensor:
    """Each run of 256 elements to whole steps of a 127th of its largest, which is kept in float32."""
    found = []
    for block in x.flatten().split(BLOCK):
        step = float((block.abs().max() / 127).float())
        found.append(torch.round(block / step) * step if step else block)
    return torch.cat(found).view_as(x)


def in_fp8(given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    parts = [near(one) for one in given]
    return near(sum(parts[1:], parts[0])), [torch.zeros_like(one) for one in given]


def near(x: Tensor) -> Tensor:
    """Each run of 256 elements to three bits behind the leading one, in units of a 448th of its largest; below 2^-6 of
    these to whole steps of 2^-9."""
    found = []
    for block in x.flatten().split(BLOCK):
        unit = float((block.abs().max() / 448).float())
        scaled = (block / unit if unit else block).float().double()  # torch rounds a float64 to float32 first
        step = 2.0 ** (torch.frexp(scaled).exponent.clamp(min=-5) - 4)
        found.append(torch.round(scaled / step) * step * (unit or 1.0))
    return torch.cat(found).view_as(x)


def boxes_of(plan: Plan) -> list[Box]:
    """What of a plan's parameters goes compressed: matrices that one stage has; of PowerSGD the boxes in which factors
    have at most half the elements, of others those that dp alone sums."""
    lowered, how = plan.lowered, plan.parallelism.compressed
    assert how is not None
    mesh, found = lowered.mesh, []
    for stored in lowered.parameters:
        rows, columns = (*stored.local_shape, 1)[0], math.prod(stored.local_shape[1:])
        if len(stored.local_shape) < 2 or len(set(stored.stages)) > 1:
            continue
        if 2 * how.rank * (rows + columns) >= rows * columns if how.rank else stored.reduce_axes != ("dp",):
            continue
        ranks = [{a.name: mesh.coordinate(n, a.name) for a in mesh.device_axes} for n in range(mesh.devices)]
        for part in dict.fromkeys(part_of(stored.type.shape, stored.layout, mesh, rank) for rank in ranks):
            place = part.shifted(stored.dim, stored.start) if stored.dim >= 0 else part
            found.append(Box(stored.source, place.slices, rule_of(how, stored.name, part, plan.record.training.seed)))
    return found


def replicas_of(plan: Plan, shifted: bool) -> Replicas | None:
    """Of a plan of a model of labels other than -100, which a causal one shifts by a token; None for what is linear."""
    how, dp = plan.parallelism.compressed, plan.parallelism.dp
    assert how is not None and dp is not None

    def counted(batch: Batch) -> int:
        return int((batch["labels"][:, int(shifted) :] != -100).sum())

    return None if how.linear else Replicas(dp // how.within, plan.record.chosen.microbatches, counted)
