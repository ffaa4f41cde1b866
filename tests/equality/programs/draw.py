"""Programs drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.equality.programs.program import JOINS, KINKED, Program, Shape, Step, apply, batch_of, drawn
from tests.equality.programs.setting import Setting

UNARY = ("tanh", "sigmoid", "gelu", "silu", "sin", "relu", "abs", "neg", "square", "exp")
BINARY = ("add", "sub", "mul", "divide", "maximum", "where")
SIZES = (2, 3, 4, 6, 8, 12)
MOST_ELEMENTS, LARGEST, NEAR = 6000, 1e3, 1e-7


def draw_program(seed: int, setting: Setting) -> Program:
    """5 to 30 steps."""
    return Drawer(seed, setting).program()


class Drawer:
    """Draws one step after another, running each: what overflows, or stands at a jump of a gradient, is drawn again."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.chance = random.Random(f"program {seed}")
        self.generator = torch.Generator().manual_seed(seed)
        self.seed, self.setting = seed, setting
        self.first = 0 if setting.free else 1  # the first dim that operators may treat as they like
        shape = tuple(self.chance.choice(SIZES) for _ in range(self.chance.choice((1, 2, 2, 3))))
        ids = self.chance.choice((0, 0, 12)) if len(shape) > 1 else 0
        self.base = Program(seed, setting.rows, shape, ids, (), 1, tuple(self.chance.choices(list(JOINS), k=3)))
        entering = batch_of(self.base)["x"]
        table = drawn((max(1, ids), shape[-1]), self.generator)
        self.values = [(table[entering] if ids else entering).double()]
        self.steps: list[Step] = []
        self.makers: Sequence[Callable[[], Step | None]] = (
            self.unary, self.unary, self.affine, self.binary, self.binary, self.binary, self.weighted, self.linear,
            self.linear, self.normalised, self.softmax, self.reduced, self.reduced, self.reshaped, self.reshaped,
            self.permuted, self.sliced, self.expanded, self.joined, self.product, self.masked,
        )  # fmt: skip

    def program(self) -> Program:
        wanted, layers = self.chance.randint(5, 30), 1
        if self.setting.pp > 1:
            wanted, layers = min(wanted, 30 // (2 * self.setting.pp)), 2 * self.setting.pp
        for _ in range(40 * wanted):
            if len(self.steps) == wanted:
                break
            makers = self.makers if self.steps else (self.weighted, self.linear)  # something that learns is in all
            step = self.chance.choice(makers)()
            if step is not None:
                self.take(step)
        base = self.base
        return Program(base.seed, base.rows, base.shape, base.ids, tuple(self.steps), layers, base.joins)

    def take(self, step: Step) -> None:
        """Keeps a step whose result is neither too large nor at a jump."""
        operands = [self.values[i] for i in step.operands]
        if step.op in KINKED and near_jump(step, operands):
            return
        weights = [drawn(shape, self.generator).double() for shape in step.parameters]
        result = apply(step, operands, weights)
        if result.numel() <= MOST_ELEMENTS and bool(result.isfinite().all()) and float(result.abs().max()) < LARGEST:
            self.steps.append(step)
            self.values.append(result)

    def pick(self, wanted: Callable[[Tensor], bool] = lambda x: True) -> int | None:
        """One of the values, a late one rather than an early one; what entered as it is, now and then."""
        first = 0 if not self.steps or self.chance.random() < 0.3 else 1
        found = [i for i, value in enumerate(self.values) if i >= first and wanted(value)]
        return self.chance.choice([*found, *found[-3:]]) if found else None

    def dim(self, x: Tensor) -> int:
        return self.chance.randrange(self.first, x.dim())

    def has_dims(self, x: Tensor) -> bool:
        return x.dim() > self.first

    # one step of each kind; None where no value goes with it

    def unary(self) -> Step | None:
        return Step(self.chance.choice(UNARY), (self.index(),))

    def index(self) -> int:
        found = self.pick()
        assert found is not None
        return found

    def affine(self) -> Step | None:
        if self.chance.random() < 0.3:
            return Step("clamp", (self.index(),), (-0.7, 0.9))
        numbers = self.chance.choice((-0.5, 0.7, 2.0)), self.chance.choice((0.0, 1.0, -0.3))
        return Step("affine", (self.index(),), numbers)

    def binary(self) -> Step | None:
        """Of one shape, or of two that broadcast."""
        a = self.index()
        x = self.values[a]
        b = self.pick(lambda y: fits(x.shape, y.shape))
        if b is None:
            return None
        pair = (a, b) if self.chance.random() < 0.5 else (b, a)
        return Step(self.chance.choice(BINARY), pair)

    def weighted(self) -> Step | None:
        """A parameter that is as large as an activation's last dims, or broadcast over some."""
        i = self.pick(self.has_dims)
        if i is None:
            return None
        dims = self.values[i].shape[self.first :]
        dims = dims[self.chance.randrange(len(dims)) :]
        shape = tuple(size if self.chance.random() < 0.7 else 1 for size in dims)
        return Step(self.chance.choice(("scale", "shift")), (i,), (), (shape,))

    def linear(self) -> Step | None:
        i = self.pick(lambda x: x.dim() > 1)
        if i is None:
            return None
        inner, outer = self.values[i].shape[-1], self.chance.choice(SIZES)
        op = self.chance.choice(("linear", "linear_bias", "matmul"))
        shapes = {"linear": ((outer, inner),), "linear_bias": ((outer, inner), (outer,)), "matmul": ((inner, outer),)}
        return Step(op, (i,), (), shapes[op])

    def normalised(self) -> Step | None:
        i = self.pick(lambda x: x.dim() > 1 and x.shape[-1] > 2)
        if i is None:
            return None
        size = tuple(self.values[i].shape[-1:])
        op = self.chance.choice(("layer_norm", "rms_norm"))
        return Step(op, (i,), (), (size, size) if op == "layer_norm" else (size,))

    def softmax(self) -> Step | None:
        i = self.pick(self.has_dims)
        if i is None:
            return None
        return Step(self.chance.choice(("softmax", "log_softmax")), (i,), (self.dim(self.values[i]),))

    def reduced(self) -> Step | None:
        i = self.pick(self.has_dims)
        if i is None:
            return None
        dims = list(range(self.first, self.values[i].dim()))
        some = tuple(sorted(self.chance.sample(dims, self.chance.randint(1, min(2, len(dims))))))
        op = self.chance.choice(("sum", "mean", "mean", "amax", "logsumexp"))
        return Step(op, (i,), (some, self.chance.random() < 0.5))

    def reshaped(self) -> Step | None:
        """A dim is split into two, or two neighbours are joined."""
        i = self.pick(self.has_dims)
        if i is None:
            return None
        shape = tuple(self.values[i].shape)
        d = self.dim(self.values[i])
        if d + 1 < len(shape) and self.chance.random() < 0.5:
            return Step("reshape", (i,), ((*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]),))
        factors = [f for f in range(2, shape[d]) if shape[d] % f == 0]
        if not factors or len(shape) > 4:
            return None
        factor = self.chance.choice(factors)
        return Step("reshape", (i,), ((*shape[:d], factor, shape[d] // factor, *shape[d + 1 :]),))

    def permuted(self) -> Step | None:
        i = self.pick(lambda x: x.dim() > self.first + 1)
        if i is None:
            return None
        rank = self.values[i].dim()
        dims = list(range(self.first, rank))
        self.chance.shuffle(dims)
        return Step("permute", (i,), ((*range(self.first), *dims),))

    def sliced(self) -> Step | None:
        i = self.pick(self.has_dims)
        if i is None:
            return None
        d = self.dim(self.values[i])
        size = self.values[i].shape[d]
        if self.chance.random() < 0.3:
            return Step("select", (i,), (d, self.chance.randrange(size)))
        start = self.chance.randrange(size)
        return Step("slice", (i,), (d, start, self.chance.randint(start + 1, size)))

    def expanded(self) -> Step | None:
        i = self.pick(lambda x: x.dim() < 4)
        if i is None:
            return None
        place = self.chance.randint(self.first, self.values[i].dim())
        return Step("expand", (i,), (place, self.chance.choice((2, 3, 4))))

    def joined(self) -> Step | None:
        """Two values one after the other: along a dim in which alone they differ, or along a new one."""
        a = self.pick(self.has_dims)
        if a is None:
            return None
        x, d = self.values[a], self.dim(self.values[a])
        rest = (*x.shape[:d], *x.shape[d + 1 :])
        b = self.pick(lambda y: y.dim() == x.dim() and (*y.shape[:d], *y.shape[d + 1 :]) == rest)
        if b is None:
            return None
        if self.values[b].shape == x.shape and x.dim() < 4 and self.chance.random() < 0.4:
            return Step("stack", (a, b), (d,))
        return Step("cat", (a, b), (d,))

    def product(self) -> Step | None:
        a = self.pick(lambda x: x.dim() >= 2 + self.first)
        if a is None:
            return None
        x = self.values[a]
        b = self.pick(lambda y: y.dim() == x.dim() and y.shape[:-2] == x.shape[:-2] and y.shape[-1] == x.shape[-1])
        return None if b is None else Step("product", (a, b))

    def masked(self) -> Step | None:
        i = self.pick(lambda x: x.dim() >= 2 + self.first)
        return None if i is None else Step("mask", (i,), (self.chance.choice((0.0, -2.0)),))


def fits(shape: Shape | torch.Size, other: Shape | torch.Size) -> bool:
    """Whether the second is broadcast to the first, dims aligned at the last, ranks equal."""
    return len(shape) == len(other) and all(t in (1, s) for s, t in zip(shape, other, strict=True))


def near_jump(step: Step, operands: Sequence[Tensor]) -> bool:
    """Whether rounding could decide which side of its jump an element is on."""
    x = operands[0]
    if step.op in ("relu", "abs"):
        return bool((x.abs() < NEAR).any())
    if step.op == "clamp":
        return any(bool(((x - float(str(edge))).abs() < NEAR).any()) for edge in step.args)
    if step.op == "maximum":
        return bool(((x - operands[1]).abs() < NEAR).any())
    if step.op == "where":
        return bool((x.abs() < NEAR).any())
    dims = step.args[0]
    assert isinstance(dims, tuple)
    kept = [d for d in range(x.dim()) if d not in dims]
    flat = x.permute(*kept, *dims).reshape(*(x.shape[d] for d in kept), -1).sort(-1).values
    return flat.shape[-1] > 1 and bool((flat[..., -1] - flat[..., -2] < NEAR).any())

