"""Accumulates the gradients of several batches before one update.

What autograd and the sums over ranks work on is always one batch's: gradients of earlier batches are set aside before
its backward and added to the result after it. So nothing that was summed over ranks, or unscaled, is so again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from autoplan.errors import InputsError
from autoplan.ir.buckets import Compression
from autoplan.runtime.looked_up import BoxGradient
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

Aside = tuple[Mapping[str, Tensor], Mapping[str, Mapping[int, BoxGradient]]]
"""Gradients by the parameters' names: those of a parameter's size, and those of rows."""


class Gradients:
    """Of one rank's parameters; the same calls on every rank leave the same behind on all.

    batches  how many batches' gradients are there that no update has used, 0 after ``optimizer.zero_grad()``
    used     whether those that are there have been used
    """

    def __init__(self, held: Sequence[ShardedParameter], optimizer: Optimizer) -> None:
        self.held = tuple(h for h in held if h.stored.trainable)
        self.batches, self.used = 0, False
        self.zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self.zeroed  # type: ignore[method-assign]  # torch has hooks for steps alone
        optimizer.register_step_pre_hook(without_closure)

    def zeroed(self, set_to_none: bool = True) -> None:
        """The optimizer's own ``zero_grad``."""
        self.clear(set_to_none)
        self.batches, self.used = 0, False

    def clear(self, set_to_none: bool = True) -> None:
        """Those of what the optimizer updates, and where these are masters those of the parameters, too."""
        self.zero_grad(set_to_none)
        for each in self.held:
            if each.master is not None:
                each.parameter.grad = None
            if each.rows is not None:
                each.rows.clear()

    def check(self, accumulate: bool, how: Compression | None = None) -> None:
        """InputsError where a step would lose gradients, or add up what no longer is one; ``how`` they are compressed.
        """
        if accumulate and how is not None and how.one_bit:
            cause = f"{how.kind} sends a momentum, of which each batch would be one"
            raise InputsError("program.step(batch, accumulate=True)", cause, "give one larger batch, in microbatches")
        if self.batches and not accumulate:
            raise InputsError(
                "program.step(batch)",
                f"the gradients of {self.batches} batch{'es' * (self.batches > 1)} before it are not used yet, and "
                "would be lost",
                "call program.optimizer.step() after each step, add them up with program.step(batch, "
                "accumulate=True), or drop them with program.optimizer.zero_grad()",
            )

    def check_step(self) -> None:
        """InputsError where an optimizer's step would find nothing to do."""
        if not self.batches and not self.used and all(next(h.gradients, None) is None for h in self.held):
            cause = "there are no gradients, so nothing would be updated"
            raise InputsError("program.optimizer.step()", cause, "call program.step(batch) before it")

    def check_drained(self, full: bool) -> None:
        """InputsError where a pipeline that isn't flushed is ``full``, and is to be drained before an update."""
        if full and self.batches:
            cause = "it empties the pipeline, and the gradients of the last step are not used yet"
            remedy = "call program.optimizer.step(), or program.optimizer.zero_grad(), before it"
            raise InputsError("a call that reads or sets the weights", cause, remedy)

    def fed(self) -> None:
        """After a step of a pipeline that isn't flushed: what it has left is for the next update."""
        self.batches, self.used = 1, False

    def stepped(self) -> None:
        """After the optimizer's step."""
        self.batches, self.used = 0, True

    @contextmanager
    def of_another_batch(self, skipped: Callable[[], bool]) -> Iterator[None]:
        """Around a batch's forward and backward: those of the batches before are added to what is there in the end.

        Where it fails they are what they were; where an overflow has the update ``skipped`` there are none.
        """
        before = self.aside() if self.batches else ({}, {})
        self.clear()
        try:
            yield
        except BaseException:
            self.clear()
            self.put(before)
            raise
        if skipped():
            self.clear()
        else:
            self.put(before)
        self.batches, self.used = self.batches + 1, False

    def aside(self) -> Aside:
        """Copies, for the next backward writes where these lie; those of looked-up rows it makes anew."""
        whole = {h.name: h.parameter.grad.detach().clone() for h in self.held if h.parameter.grad is not None}
        return whole, {h.name: h.rows.aside() for h in self.held if h.rows is not None}

    def put(self, before: Aside) -> None:
        """Adds gradients to those that are there."""
        whole, of_rows = before
        for each in self.held:
            if each.rows is not None:
                each.rows.put(of_rows.get(each.name, {}))
            if each.name not in whole:
                continue
            if each.parameter.grad is None:
                each.parameter.grad = whole[each.name]
            else:
                each.parameter.grad.add_(whole[each.name])


def without_closure(_: Optimizer, given: Sequence[object], named: Mapping[str, object]) -> None:
    """InputsError for ``optimizer.step(closure)``: the program's step is forward and backward of its batch.

    given  as torch passes them: the optimizer itself, then what ``step`` was called with
    """
    if any(closure is not None for closure in (*given[1:], *named.values())):
        cause = "program.step(batch) computes the gradients, before the update begins"
        raise InputsError("optimizer.step(closure)", cause, "call program.step(batch), then optimizer.step()")
