"""Views: what moves dims about without computing. Partial sums pass through all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, letters, rule

PASSES = ((0,),)


@dataclass
class Side:
    """A shape that is being cut into factors, from its outermost dim inwards."""

    shape: tuple[int, ...]
    terms: list[list[str]]
    taken: int = 0  # dims begun
    rest: int = 1  # what is left of the last one begun

    @staticmethod
    def of(shape: tuple[int, ...]) -> Side:
        return Side(shape, [[] for _ in shape])

    def advance(self) -> None:
        """Begins the next dim where the last one is used up; dims of size one have no factors."""
        while self.rest == 1 and self.taken < len(self.shape):
            self.rest = self.shape[self.taken]
            self.taken += 1

    def cut(self, factor: str, size: int) -> None:
        self.terms[self.taken - 1].append(factor)
        self.rest //= size


@dataclass
class Refinement:
    """Two shapes of as many elements, cut into common factors."""

    before: Side
    after: Side
    sizes: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    @staticmethod
    def of(before: tuple[int, ...], after: tuple[int, ...]) -> Refinement:
        """The outermost part that two dims share, their greatest common divisor, is a factor of both; where what is
        left of them shares nothing ([3, 4] -> [4, 3]), see ``opaque``."""
        assert math.prod(before) == math.prod(after), f"{before} has not as many elements as {after}"
        self = Refinement(Side.of(before), Side.of(after))
        while True:
            self.before.advance()
            self.after.advance()
            if self.before.rest == self.after.rest == 1:
                return self
            common = math.gcd(self.before.rest, self.after.rest)
            if common > 1:
                factor = self.factor(common)
                self.before.cut(factor, common)
                self.after.cut(factor, common)
            else:
                self.opaque()

    def opaque(self) -> None:
        """Gives each dim factors of its own that never split, up to where both sides hold as many elements."""
        held = {}
        for side in (self.before, self.after):
            held[id(side)] = side.rest
            self.own(side)
        while held[id(self.before)] != held[id(self.after)]:
            side = min(self.before, self.after, key=lambda side: held[id(side)])
            side.advance()
            held[id(side)] *= side.rest
            self.own(side)

    def own(self, side: Side) -> None:
        factor = self.factor(side.rest)
        self.whole.add(factor)
        side.cut(factor, side.rest)

    def factor(self, size: int) -> str:
        name = f"f{len(self.sizes)}"
        self.sizes[name] = size
        return name


def written(terms: list[list[str]]) -> str:
    return " ".join("1" if not t else t[0] if len(t) == 1 else f"({' '.join(t)})" for t in terms) or "[]"


@rule("aten.reshape.default")
def reshape(x: TensorType, shape: tuple[int, ...]) -> Rule:
    """By common refinement: [b, s, h] -> [b, s, heads, d] splits b, s and heads, not d."""
    refinement = Refinement.of(x.shape, shape)
    return Rule(
        f"{written(refinement.before.terms)} -> {written(refinement.after.terms)}",
        sizes=refinement.sizes,
        whole=frozenset(refinement.whole),
        linear=PASSES,
        shape_arg=1,
        cost="free",
    )


@rule("aten.transpose.int")
def transpose(x: TensorType, d0: int, d1: int) -> Rule:
    dims = list(range(len(x.shape)))
    dims[d0], dims[d1] = dims[d1], dims[d0]
    return permute(x, tuple(dims))


@rule("aten.permute.default")
def permute(x: TensorType, dims: tuple[int, ...]) -> Rule:
    result = " ".join(f"d{d}" for d in dims) or "[]"
    return Rule(f"{letters(x)} -> {result}", linear=PASSES, cost="free")


@rule("aten.unsqueeze.default")
def unsqueeze(x: TensorType, dim: int) -> Rule:
    terms = [f"d{i}" for i in range(len(x.shape))]
    return Rule(f"{letters(x)} -> {' '.join([*terms[:dim], '1', *terms[dim:]])}", linear=PASSES, cost="free")


@rule("aten.squeeze.dim")
def squeeze(x: TensorType, dim: int) -> Rule:
    """The dim is of size one: it stands as ``1`` in the operand."""
    terms = [f"d{i}" for i in range(len(x.shape))]
    before = " ".join([*terms[:dim], "1", *terms[dim + 1 :]])
    after = " ".join([*terms[:dim], *terms[dim + 1 :]]) or "[]"
    return Rule(f"{before} -> {after}", linear=PASSES, cost="free")


@rule("aten.expand.default")
def expand(x: TensorType, shape: tuple[int, ...]) -> Rule:
    """A dim that grows from one, or that is new, is a factor of the result alone."""
    offset = len(shape) - len(x.shape)
    before = ["1" if size != shape[offset + i] else f"d{offset + i}" for i, size in enumerate(x.shape)]
    spec = f"{' '.join(before) or '[]'} -> {letters(len(shape))}"
    return Rule(spec, linear=PASSES, shape_arg=1, cost="free")
