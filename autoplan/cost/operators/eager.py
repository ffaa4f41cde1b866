"""What an operator runs in eager mode: the kernels that ATen runs for it forward, and autograd backward.

A compiled program fuses; in eager mode each kernel reads and writes whole tensors, and the framework goes through every
call, also one that moves nothing (a view). The table says for each operator which kernels these are, as torch 2.13 has
them; ``tests/cost/test_pricing_eager.py`` holds it to what the installed torch dispatches. An operator that isn't in it
runs one kernel forward, which reads its operands and writes its result, and one backward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cost_models.compute import eager_seconds, memory_bound_seconds
from cost_models.hardware import Device

OPERANDS = "xyz"  # the letters of the first operands; "r": the result, its gradient, or what is of its size; "*": all


@dataclass(frozen=True)
class Kernels:
    """One string for each call: a letter for each tensor that it reads or writes, "" where it moves nothing to speak
    of (a view, statistics of rows). A call that names an operand that isn't there isn't made.

    forward    beside the product, of operators that multiply
    backward   for each operand that a gradient may go back to, the calls that give its gradient; the last of them is
               that of all further operands
    broadcast  an operand smaller than the result has its gradient summed: one more kernel, which reads a tensor of the
               result's size
    """

    forward: tuple[str, ...]
    backward: tuple[tuple[str, ...], ...] = ((),)
    broadcast: bool = False


UNARY_OUT = Kernels(("xr",), (("rrx",),))
POWER = Kernels(("xr",), (("xr", "rr", "rrx"),))
SUM = Kernels(("xr",), (("",),))
MEAN = Kernels(("xr",), (("rx",),))
PIECE = Kernels(("",), (("x", "rr"),))  # its gradient is laid into zeros of the whole's size
JOINED = Kernels(("*r",), (("",),))     # gradients are views of the result's
PRODUCT = Kernels(("",) * 4, (("",) * 3,))

TABLE: Mapping[str, Kernels] = {
    "aten.add.Tensor": Kernels(("*r",), (("",),), broadcast=True),
    "aten.sub.Tensor": Kernels(("*r",), (("",), ("rr",)), broadcast=True),
    "aten.mul.Tensor": Kernels(("*r",), (("ryr",), ("rxr",)), broadcast=True),
    "aten.div.Tensor": Kernels(("*r",), (("ryr",), ("xyr", "ryr", "rr", "rrr")), broadcast=True),
    "aten.tanh.default": UNARY_OUT,
    "aten.sigmoid.default": UNARY_OUT,
    "aten.relu.default": UNARY_OUT,
    "aten.exp.default": UNARY_OUT,
    "aten.rsqrt.default": Kernels(("xr",), (("rr", "rr", "rrx"),)),
    "aten.sqrt.default": Kernels(("xr",), (("rr", "rrx"),)),
    "aten.square.default": POWER,
    "aten.pow.Tensor_Scalar": POWER,
    "aten.cos.default": Kernels(("xr",), (("xr", "rr", "rrx"),)),
    "aten.sin.default": Kernels(("xr",), (("xr", "rrx"),)),
    "aten.clone.default": Kernels(("xr",), (("",),)),
    "aten.softmax.int": UNARY_OUT,
    "aten.log_softmax.int": UNARY_OUT,
    "aten.sum.default": SUM,
    "aten.sum.dim_IntList": SUM,
    "aten.mean.default": MEAN,
    "aten.mean.dim": MEAN,
    "aten.slice.Tensor": PIECE,
    "aten.select.int": PIECE,
    "aten.cat.default": JOINED,
    "aten.stack.default": JOINED,
    "aten.expand.default": Kernels(("",), (("rx",),)),
    "aten.linear.default": Kernels(("",) * 3, (("",) * 3, ("",) * 3, ("rz", ""))),
    "aten.matmul.default": PRODUCT,
    "aten.bmm.default": PRODUCT,
    "aten.scaled_dot_product_attention.default": Kernels(("",), (("",),)),
    "autoplan.cross_entropy": Kernels(("", "", "xx", "", ""), (("", "x", "xxx", ""),)),
}
"""By operator. An entry's first backward call is autograd's own step where its gradient costs no kernel."""

COMPOSITE: Mapping[str, Kernels] = {
    "aten.rms_norm.default": Kernels(
        ("xr", "r", "", "", "rr", "ryr"),
        (("rry", "rrr", "rr", "r", "", "", "", "r", "rr", "rr", "rrr", "rrr"), ("rrr", "ry")),
    ),
}
"""What is composed of other operators on devices for which ATen has no kernel of its own (``Device.composes``)."""


def kernels_of(op: str, device: Device) -> Kernels | None:
    """The calls of an operator; None where it isn't in the table."""
    return (COMPOSITE.get(op) if device.composes else None) or TABLE.get(op)


@dataclass(frozen=True)
class Moved:
    """The tensors of one operator on one device.

    operands  bytes of each
    result    bytes
    carries   for each operand, whether a gradient goes back to it
    """

    operands: Sequence[float]
    result: float
    carries: Sequence[bool]

    def bytes(self, call: str) -> float | None:
        """That one call moves; None where it names an operand that isn't there."""
        total = 0.0
        for letter in call:
            place = OPERANDS.find(letter)
            if place >= len(self.operands):
                return None
            total += self.operands[place] if place >= 0 else self.result if letter == "r" else sum(self.operands)
        return total


def forward_bytes(kernels: Kernels, moved: Moved) -> list[float]:
    """Bytes of every call forward."""
    return [size for call in kernels.forward if (size := moved.bytes(call)) is not None]


def backward_bytes(kernels: Kernels, moved: Moved) -> list[float]:
    """Bytes of every call backward, to the operands that a gradient goes back to."""
    found: list[float] = []
    for place, carries in enumerate(moved.carries):
        if not carries:
            continue
        calls = kernels.backward[min(place, len(kernels.backward) - 1)]
        found += [size for call in calls if (size := moved.bytes(call)) is not None]
        if kernels.broadcast and moved.operands[place] < moved.result:
            found.append(moved.result + moved.operands[place])
    return found


def calls_seconds(calls: Sequence[float], device: Device) -> float:
    """Seconds of calls one after the other, each of so many bytes: for each the framework's dispatch, and where it
    moves anything a kernel."""
    return sum(float(eager_seconds(memory_bound_seconds(size, device), device)) for size in calls)
