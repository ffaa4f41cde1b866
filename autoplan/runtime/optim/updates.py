"""What stands around an optimizer's steps: the loss' scale, the learning rate's schedule, an end to divergence.

Whether a loss is finite is looked at in one of two ways:

    at once   the step waits for the device, and an error leaves gradients as they were
    late      the loss and a flag are copied to the host meanwhile, and looked at once the next step's backward is
              issued. The flag stays on the device as the ``found_inf`` of a fused optimizer, whose kernels then leave
              parameters and moments alone, as they do for torch's GradScaler: nothing is ever updated by such a loss

Late is for accelerators, where every kernel that updates takes the flag (``guarded``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from autoplan.arguments.values import is_number
from autoplan.errors import DivergedError, ParallelismError
from autoplan.options import Training
from autoplan.runtime import host
from autoplan.runtime.collectives.objects import from_all
from autoplan.runtime.optim.loss_scaling import LossScaling, unscaled
from autoplan.runtime.optim.lr_scheduler import LearningRates, in_proportion
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

Counts = Mapping[str, Sequence[Tensor]]
"""Denominators of means over the whole batch, each as every microbatch has it."""


def nowhere() -> None:
    """Nothing was saved."""


class Updates:
    """Of one program's optimizer; a collective of the whole world to make.

    scale    what the engines do to each microbatch's loss
    skipped  whether a gradient overflowed in the last step, so that the optimizer finds none and updates nothing
    last     gives the checkpoint that was saved or loaded last, and is there
    late     whether a loss that isn't finite is told late
    from_all_ranks   whether each rank sees a loss that all have a part in: else they tell each other of one that isn't
                     finite
    unless_diverged  what DivergedError of a loss or its gradients is raised within, whenever it is
    """

    def __init__(
        self, training: Training, optimizer: Optimizer, held: Sequence[ShardedParameter], device: torch.device,
        last: Callable[[], Path | None] = nowhere,
        unless_diverged: Callable[[], AbstractContextManager] = nullcontext, from_all_ranks: bool = False,
    ) -> None:  # fmt: skip
        self.training, self.optimizer, self.held, self.device = training, optimizer, held, device
        self.scaling = LossScaling(held, device) if training.scales_loss else None
        self.rates = LearningRates(training.lr_schedule, optimizer) if training.lr_schedule is not None else None
        self.own = tuple(float(group["lr"]) for group in optimizer.param_groups)
        self.scale = unscaled if self.scaling is None else self.scaling.scale
        self.unless_diverged, self.from_all_ranks = unless_diverged, from_all_ranks
        self.skipped, self.loss = False, torch.zeros(())
        self.last = last
        watches = self.rates is not None and self.rates.watches
        late = self.scaling is None and not watches and guarded(optimizer, device)
        self.late = device.type != "cpu" and all(from_all(late))  # ranks may hold other sorts of parameters
        self.unseen: Unseen | None = None
        self.wrong = torch.zeros((), device=device)

    @property
    def asks(self) -> bool:
        """Whether a rank may see a finite loss where another doesn't."""
        return dist.get_world_size() > 1 and not self.from_all_ranks

    def settle(self, loss: Tensor, step: int, before: int = 0, counts: Counts | None = None) -> None:
        """After a backward, all sums done: divides gradients by the scale, or drops them where one overflowed.

        loss    of the whole batch
        before  batches whose gradients these are added to; an overflow in one of them is one of the sum
        counts  what its means are divided by, over the whole batch
        DivergedError, on every rank, where any has a loss that isn't finite, unless it is float16 that overflowed: one
        device that computes wrongly must not leave the others waiting. Late it is of the loss before this one.
        """
        if self.late:
            self.look()
            self.guard(loss, step, before, counts or {})
            self.note(loss, before)
            return
        with self.unless_diverged():
            overflowed = self.scaling is not None and self.scaling.unscale(step)
            value, wrong = self.read(loss)
            if not overflowed and wrong:
                raise self.not_finite(value, step, counts or {})
        self.skipped = overflowed or (self.skipped and before > 0)
        self.note(loss, before)

    def arrived(self, loss: Tensor, step: int) -> None:
        """Of a batch's loss that all ranks have alike, of whose gradients updates may have been made. DivergedError, on
        every rank, where it isn't finite; on an accelerator once it is looked at."""
        if self.device.type != "cpu":
            self.look()
            wrong = (~torch.isfinite(loss)).double()
            self.unseen = Unseen(host.Arriving(torch.stack([loss.double(), wrong])), step, {})
        elif not math.isfinite(float(loss)):
            raise self.not_finite(float(loss), step, {})
        self.note(loss, 0)

    def note(self, loss: Tensor, before: int) -> None:
        """The mean over the batches whose gradients are added up."""
        self.loss = (self.loss * before + loss) / (before + 1) if before else loss

    def guard(self, loss: Tensor, step: int, before: int, counts: Counts) -> None:
        """Has the next update be none where this loss, or one whose gradients are added, isn't finite on any rank; and
        the loss be looked at later."""
        wrong = (~torch.isfinite(loss)).double()
        if self.asks:
            dist.all_reduce(wrong, dist.ReduceOp.MAX)
        self.wrong = torch.maximum(self.wrong, wrong.float()) if before else wrong.float()  # kernels take float32
        self.optimizer.found_inf = self.wrong  # type: ignore[attr-defined]  # where GradScaler puts it
        self.unseen = Unseen(host.Arriving(torch.stack([loss.double(), wrong])), step, counts)

    def look(self) -> None:
        """Of the last loss that was told late: DivergedError, on every rank, where any has one that isn't finite."""
        unseen, self.unseen = self.unseen, None
        if unseen is not None:
            value, wrong = unseen.arriving.read()
            if wrong:
                with self.unless_diverged():
                    raise self.not_finite(value, unseen.step, unseen.counts)

    def forget(self) -> None:
        """What was computed before counts no more: other parameters have been loaded."""
        self.unseen = None

    def not_finite(self, value: float, step: int, counts: Counts) -> DivergedError:
        if any(not any(bool(count.any()) for count in each) for each in counts.values()):
            cause = "no label of this batch counts, all are -100: a mean over none is 0/0 on one device, too"
            return DivergedError(f"loss={value} at step {step}", cause, "leave out batches without valid labels")
        where = " on another rank" if math.isfinite(value) else ""
        return self.diverged(f"loss={value} at step {step}", f"the forward of this batch isn't finite{where}")

    def read(self, loss: Tensor) -> tuple[float, bool]:
        """The loss, and whether it isn't finite on any rank; the step waits for the device once."""
        if not self.asks:
            (value,) = host.read(loss.reshape(1))
            return value, not math.isfinite(value)
        wrong = (loss - loss).to(torch.float64)  # zero, or NaN
        dist.all_reduce(wrong)
        value, found = host.read(torch.stack([loss.to(wrong), wrong]))
        return value, not math.isfinite(found)

    def stepped(self) -> None:
        """After the optimizer's step."""
        if self.rates is not None and not self.skipped:
            self.rates.moved(self.loss)

    def check_parameters(self) -> None:
        """DivergedError, on every rank, where a parameter of any isn't finite: nothing saved is to hold it."""
        self.look()
        wrong = [h.name for h in self.held if not finite(h.values)]
        if self.anywhere(bool(wrong)):
            name = wrong[0] if wrong else "another rank's"
            raise self.diverged(f"parameters that aren't finite: {name}", "the last gradients weren't")

    def anywhere(self, here: bool) -> bool:
        """Whether it is so on any rank; every rank asks."""
        found = torch.tensor(float(here), device=self.device)
        dist.all_reduce(found)
        return bool(found)

    def diverged(self, value: str, cause: str) -> DivergedError:
        return self.told(float(self.optimizer.param_groups[0]["lr"]), self.last(), value, cause)

    def told(self, rate: float, last: Path | None, value: str, cause: str) -> DivergedError:
        causes = f"a learning rate of {rate:g} that is too high, or a batch or weights that aren't finite themselves"
        back = f"go back to {last}" if last is not None else "begin again"
        clipped = "" if self.training.clip_grad_norm else " and clip_grad_norm"
        return DivergedError(value, f"{cause}; it may be {causes}", f"{back}, with a lower learning rate{clipped}")

    def refusing(self) -> Callable[[str, str], DivergedError]:
        """Makes the error of a save's value that isn't finite, as of this moment: it may be found later."""
        return partial(self.told, float(self.optimizer.param_groups[0]["lr"]), self.last())

    def set_learning_rate(self, rate: float) -> None:
        """Another learning rate from here on; a schedule is where it would be had it started from that one, and a
        group's own rate is in proportion.

        ParallelismError for what is none, and where the schedule reads none.
        """
        if not is_number(rate) or rate < 0:
            raise ParallelismError(f"learning_rate={rate!r}", "it is a number of at least 0", "give 0 or more")
        if self.rates is not None:
            self.rates.set_rate(rate)
            return
        for group, own in zip(self.optimizer.param_groups, in_proportion(self.own, rate), strict=True):
            group["lr"] = own

    @property
    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint keeps of this, by name: plain numbers, the same on every rank."""
        found: dict[str, Stateful | None] = {"scaler": self.scaling, "schedule": self.rates}
        return {name: part for name, part in found.items() if part is not None}


@dataclass(frozen=True)
class Unseen:
    """A loss that nobody has looked at.

    arriving  [2]: the loss, and whether any rank's isn't finite
    step      of which it is
    counts    see ``Updates.settle``
    """

    arriving: host.Arriving
    step: int
    counts: Counts


def guarded(optimizer: Optimizer, device: torch.device) -> bool:
    """Whether ``optimizer.found_inf`` on this device keeps its step from changing anything.

    That is what GradScaler asks ``_step_supports_amp_scaling`` for; no public attribute tells. SGD's kernel leaves a
    momentum that it should have begun uninitialised, so not with momentum.
    """
    groups = optimizer.param_groups
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(group.get("fused") and not group.get("momentum") for group in groups)
        and all(p.device.type == device.type for group in groups for p in group["params"])
    )


def finite(x: Tensor) -> bool:
    """Whether all values are. The sum tells in one pass over memory: it is finite where they are, unless it overflows,
    and only then each is looked at."""
    total = x.sum(dtype=torch.promote_types(x.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(x).all())
