"""What an operator holds in eager mode beside its operands, its result and their gradients.

ATen keeps for the backward what a rule's ``saved`` says; where it makes further tensors, to keep them or for a moment,
they stand in the table, as torch 2.13 has them. ``tests/search/test_search_live.py`` holds it to what the installed
torch allocates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost.operators.eager import TABLE
from cost_models.hardware import Device

OPERANDS = "xyz"  # letters as in ``eager``: the first operands; "r": of the result's size


@dataclass(frozen=True)
class Holds:
    """One letter for each tensor.

    saves  made in the forward and kept for the backward, beside ``Rule.saved``
    keeps  what is kept in place of ``Rule.saved``; None: that
    back   stand at once in the backward, the gradients that it gives among them, where that is more than these alone
    """

    saves: str = ""
    keeps: tuple[int | str, ...] | None = None
    back: str = ""

    def saved(self, sizes: Sequence[int], result: int) -> int:
        """Bytes of ``saves``."""
        return bytes_of(self.saves, sizes, result)

    def backward(self, sizes: Sequence[int], result: int) -> int:
        """Bytes of ``back``."""
        return bytes_of(self.back, sizes, result)


def bytes_of(letters: str, sizes: Sequence[int], result: int) -> int:
    return sum(result if letter == "r" else sizes[OPERANDS.index(letter)] for letter in letters)


PLAIN = Holds()
POWER = Holds(back="rrr")  # x**(n-1), n times that, times the gradient

HOLDS: Mapping[str, Holds] = {
    "aten.pow.Tensor_Scalar": POWER,
    "aten.square.default": POWER,
    "aten.cos.default": POWER,
    "aten.rsqrt.default": POWER,
    "aten.sin.default": Holds(back="rr"),
    "aten.sqrt.default": Holds(back="rr"),
    "aten.div.Tensor": Holds(back="rrrr"),
    "aten.var.dim": Holds(back="xx"),
    "autoplan.cross_entropy": Holds(saves="x", keeps=(1,), back="xx"),  # log-softmax; its gradient, and the logits'
}
"""By operator; what isn't here holds nothing else."""

COMPOSED: Mapping[str, Holds] = {"aten.rms_norm.default": Holds(saves="r", back="rrrr")}
"""What is composed of other operators where ATen has no kernel of its own (``Device.composes``): the normalised rows
are kept; their gradient and what it is multiplied by stand beside it."""

UNWEIGHTED: Mapping[str, Holds] = {"aten.rms_norm.default": Holds(back="rrrrr")}
"""The same where there is no weight: the normalised rows are the result, and nothing reads them."""

BODIES: Mapping[str, Holds] = {
    "vocab_parallel_cross_entropy": Holds(back="x"),  # of each row a few numbers; then the gradient, from the logits
    "vocab_parallel_weighted_cross_entropy": Holds(back="x"),
}
"""By the body that runs in an operator's place."""


def holds_of(op: str, device: Device, body: str = "", operands: int = 2) -> Holds:
    """What an operator holds on so many tensors; ``body``: the name of what runs in its place, if something does."""
    composed = (COMPOSED if operands > 1 else UNWEIGHTED) if device.composes else {}
    return BODIES.get(body) or composed.get(op) or HOLDS.get(op, PLAIN)


def passes_gradient(op: str, place: int) -> bool:
    """Whether an operand's gradient is the result's, as it is, where it has its size: no kernel gives it."""
    kernels = TABLE.get(op)
    if kernels is None:
        return False
    return not any(kernels.backward[min(place, len(kernels.backward) - 1)])
