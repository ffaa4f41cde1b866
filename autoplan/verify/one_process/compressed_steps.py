"""One process that compresses what each replica has of a gradient, and goes on with what all together make of it.

Of PowerSGD the whole batch's gradient is compressed once, with one error: that is what all ranks' compression comes to.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.ir.buckets import BLOCK, Compression
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered, StoredParameter
from autoplan.lower.after_search import program_of
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.parallel.compression.powersgd import first_factor
from autoplan.runtime.parallel.compression.program_sums import goes_compressed
from autoplan.runtime.parallel.own_box import Part, part_of
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.verify.compare import Run
from autoplan.verify.one_process.replica_gradients import replica_rows, summands, trained
from autoplan.verify.reference import gradients_of, parts_of, state_of, update

Batch = Mapping[str, Tensor]
Sent = tuple[Tensor, list[Tensor]]
"""(the gradient that all go on with, what each has left out)."""


class Compressed:
    """Of the parameters of a user's module, the boxes that ranks hold, with each replica's errors."""

    def __init__(self, module: nn.Module, record: PlanRecord, seed: int) -> None:
        self.module, self.parameters = module, dict(module.named_parameters(remove_duplicate=False))
        parallelism, lowered = record.chosen.parallelism, program_of(record)
        spec, how = ProgramSpec(lowered, parallelism, Training()), parallelism.compressed
        assert how is not None and parallelism.dp is not None
        self.how, self.replicas = how, 1 if how.linear else parallelism.dp // how.within
        self.microbatches = record.chosen.microbatches
        self.boxes: list[tuple[str, tuple[slice, ...]]] = []
        self.rules: list[Callable[[list[Tensor]], Sent]] = []
        for stored in lowered.parameters:
            for part in boxes(stored, lowered) if goes_compressed(spec, stored) else ():
                place = part.shifted(stored.dim, stored.start) if stored.dim >= 0 else part
                self.boxes.append((stored.source, place.slices))
                self.rules.append(rule(how, stored.name, part, seed))
        empty = [torch.zeros_like(self.parameters[name][box]) for name, box in self.boxes]
        self.errors = [[each.clone() for _ in range(self.replicas)] for each in empty]

    def backward(self, loss_of: Callable[[nn.Module, Batch], float], batch: Batch, apart: bool) -> float:
        """A batch's loss; its gradients, and what each replica has of them.

        apart  whether each microbatch has a loss of its own, and denominators
        """
        many = self.microbatches if apart else 1
        loss, shares = 0.0, torch.zeros(())
        for part in parts_of(batch, many):
            rows = replica_rows(part, self.replicas, self.microbatches // many) if self.replicas > 1 else [part]
            one, found = summands(self.module, loss_of, part, rows)
            loss, shares = loss + one / many, shares + found / many
        mine = trained(self.module)
        split = [flat.split([p.numel() for p in mine]) for flat in shares]
        self.shares = {id(p): [one.view(p.shape) for one in each] for p, *each in zip(mine, *split, strict=True)}
        for parameter in mine:
            parameter.grad = torch.stack(self.shares[id(parameter)]).sum(0)
        return loss

    def compress(self, optimizer: torch.optim.Optimizer) -> None:
        """Has gradients be what comes of them; ``optimizer``: who steps by them."""
        for n, (name, box) in enumerate(self.boxes):
            parameter = self.parameters[name]
            beta, momentum, known = self.moments(parameter, box, optimizer)
            each = [beta / self.replicas * momentum + (1 - beta) * one[box] for one in self.shares[id(parameter)]]
            given = [one + error for one, error in zip(each, self.errors[n], strict=True)]
            sent, self.errors[n] = self.rules[n](given)
            assert parameter.grad is not None
            parameter.grad[box] = (sent * known - beta * momentum) / (1 - beta)

    def moments(
        self, parameter: Tensor, box: tuple[slice, ...], optimizer: torch.optim.Optimizer
    ) -> tuple[float, Tensor | float, Tensor | float]:
        """Of a box: how much of its momentum stays, the momentum, and where it has a variance. Where a gradient goes,
        none of it does."""
        if not self.how.one_bit:
            return 0.0, 0.0, 1.0
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        state = optimizer.state[parameter]
        return group["betas"][0], state["exp_avg"][box], (state["exp_avg_sq"][box] > 0).to(parameter.dtype)


def rule(how: Compression, name: str, part: Part, seed: int) -> Callable[[list[Tensor]], Sent]:
    """Of a box of a parameter."""
    if how.kind == "powersgd":
        factor = first_factor(name, part, how.rank, seed, torch.float64)
        return lambda given: low_rank(given[0], factor)
    if how.kind == "topk":
        return lambda given: largest(given, how.kept(given[0].numel()))
    return OneBit().sent if how.one_bit else in_fp8 if how.kind == "fp8" else in_int8


class OneBit:
    """1-bit Adam of a box: each replica's part of the momentum, and their sum, in one bit; both errors are kept."""

    def __init__(self) -> None:
        self.left: Tensor | float = 0.0

    def sent(self, given: Sequence[Tensor]) -> Sent:
        """The momentum that all go on with."""
        signs = [in_one_bit(one) for one in given]
        total = torch.stack(signs).sum(0) + self.left
        whole = in_one_bit(total)
        self.left = total - whole
        return whole, [one - sign for one, sign in zip(given, signs, strict=True)]


def in_one_bit(x: Tensor) -> Tensor:
    """Each block's signs, with the mean size of its elements."""
    found = []
    for block in x.flatten().split(BLOCK):
        found.append(torch.copysign(block.abs().mean().float().to(x.dtype), block + 0.0))
    return torch.cat(found).view_as(x)


def low_rank(given: Tensor, factor: Tensor) -> Sent:
    matrix = given.flatten(1)
    left = torch.linalg.qr(matrix @ factor).Q
    factor.copy_(matrix.t() @ left)
    sent = (left @ factor.t()).view_as(given)
    return sent, [given - sent]


def largest(given: Sequence[Tensor], count: int) -> Sent:
    """Of each replica its largest elements."""
    sent = []
    for one in given:
        flat, kept = one.flatten(), torch.zeros(one.numel(), dtype=one.dtype)
        places = flat.abs().topk(count).indices
        kept[places] = flat[places]
        sent.append(kept.view_as(one))
    return torch.stack(sent).sum(0), [one - kept for one, kept in zip(given, sent, strict=True)]


def in_int8(given: Sequence[Tensor]) -> Sent:
    """Each replica's rounded to 127 steps of a block's largest, and their sum; nothing of that is kept."""
    return in_a_byte(given, 127, torch.round)


def in_fp8(given: Sequence[Tensor]) -> Sent:
    """The same in float8 of three bits mantissa, whose largest is the block's."""
    return in_a_byte(given, 448, lambda x: x.to(torch.float8_e4m3fn).to(x.dtype))


def in_a_byte(given: Sequence[Tensor], largest: int, nearest: Callable[[Tensor], Tensor]) -> Sent:
    each = [rounded(one, largest, nearest) for one in given]
    return rounded(torch.stack(each).sum(0), largest, nearest), [torch.zeros_like(one) for one in given]


def rounded(x: Tensor, largest: int, nearest: Callable[[Tensor], Tensor]) -> Tensor:
    """Blocks in units of which each one's largest element has so many, to what is nearest."""
    blocks = F.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    step = (blocks.abs().amax(1, keepdim=True) / largest).float().to(x.dtype)
    return (nearest(blocks / step.where(step > 0, 1.0)) * step).view(-1)[: x.numel()].view_as(x)


def boxes(stored: StoredParameter, lowered: Lowered) -> list[Part]:
    """Those of a parameter that ranks hold."""
    mesh = lowered.mesh
    ranks = [{axis.name: mesh.coordinate(rank, axis.name) for axis in mesh.device_axes} for rank in range(mesh.devices)]
    return list(dict.fromkeys(part_of(stored.type.shape, stored.layout, mesh, rank) for rank in ranks))


def train_compressed(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], batch: Batch, training: Training,
    compressed: Compressed, steps: int,
) -> Run:  # fmt: skip
    """One device's steps, with gradients as they come out of compression."""
    named, how = module.named_parameters(remove_duplicate=False), compressed.how
    optimizer, start = build_optimizer(named, training, how), how.warm_up(training.compression_start)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(compressed.backward(loss_of, batch, training.microbatch_statistics))
        if step >= start:
            compressed.compress(optimizer)
        gradients = gradients_of(module) if step == 0 else gradients
        update(module, optimizer, training)
    return Run(tuple(losses), gradients, state_of(module))
