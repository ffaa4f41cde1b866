"""Windows that move along a dim: a convolution's, a pooling's, and what of a neighbour's part they see.

Window i covers the places i * stride - padding + j * dilation, j < kernel. Where windows lie side by side and fill the
dim it splits by itself. Where there is a window for every ``stride`` places, ranks with equal parts have equal numbers
of windows, which reach over the edges of a part: the halo, ``padding`` places before it and ``after`` behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.ir.graph import Argument, Node, TensorType
from autoplan.ir.layout import R, S
from autoplan.rules.registry import AxisStrategy

CONVOLUTION = "aten.convolution.default"


@dataclass(frozen=True)
class Window:
    """One dim's; all in places of the dim."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From a window's first place to its last."""
        return self.dilation * (self.kernel - 1)

    @property
    def after(self) -> int:
        """How far the last window of a part reaches behind it; negative where it ends before."""
        return self.reach - self.padding - self.stride + 1

    def windows(self, size: int) -> int:
        """In a dim of this size."""
        return (size + 2 * self.padding - self.reach - 1) // self.stride + 1

    def fills(self, size: int) -> bool:
        """Whether windows lie side by side, and cover all."""
        beside = self.kernel == self.stride and self.padding == 0 and self.dilation == 1
        return beside and size % self.kernel == 0

    def splits(self, size: int) -> bool:
        """Whether parts of equal size have as many windows each, given their halos."""
        even = size % self.stride == 0 and self.windows(size) == size // self.stride
        return even and self.padding <= self.reach

    @property
    def halo(self) -> int:
        """Places of other parts that one part's windows see."""
        return self.padding + max(self.after, 0)


def windows_of(node: Node, operands: Sequence[TensorType]) -> tuple[Window, ...]:
    """Of a convolution or a pooling, one for each dim of space."""
    if node.op == CONVOLUTION:
        stride, padding, dilation = (sizes(node.args[i]) for i in (3, 4, 5))
        return convolving(operands[1].shape[2:], stride, padding, dilation)
    dilation = sizes(node.args[4]) if node.op.startswith("aten.max") and len(node.args) > 4 else ()
    stride, padding = (sizes(node.args[i]) if len(node.args) > i else () for i in (2, 3))
    return pooling(sizes(node.args[1]), stride, padding, dilation)


def sizes(argument: Argument) -> tuple[int, ...]:
    assert isinstance(argument, tuple)
    return tuple(argument)


def convolving(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[Window, ...]:
    return tuple(map(Window, kernel, stride, padding, dilation))


def pooling(
    kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = ()
) -> tuple[Window, ...]:
    count = len(kernel)
    return tuple(map(Window, kernel, stride or kernel, padding or (0,) * count, dilation or (1,) * count))


def with_halos(x: TensorType, windows: Sequence[Window], body: str, others: int) -> tuple[AxisStrategy, ...]:
    """A strategy for each dim of space whose parts see little of each other: x [b, c, space..] split along it, the
    ``others`` operands whole. The body is named by the dim."""
    if len(x.shape) != len(windows) + 2:
        return ()
    return tuple(
        AxisStrategy(
            (S(dim), *(R for _ in range(others))),
            S(dim),
            factor=f"y{dim - 2}",
            body=f"{body}_along_{dim}",
            communicates=True,
            single=True,
        )
        for dim, window in enumerate(windows, 2)
        if window.splits(x.shape[dim]) and not window.fills(x.shape[dim])
    )
