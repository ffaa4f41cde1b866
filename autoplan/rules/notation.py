"""How one operator may be split: its factors, as an einsum names them.

A rule is written in a notation. ``"b s k, n k -> b s n"`` is linear: a factor that stands in the result splits freely;
one that stands in operands alone (k) leaves the result partial; a factor that only the result has (an expanded dim)
splits without its operands noticing. ``"b (h d) -> b h d"`` is a view: of a compound dim only the outermost factor can
be split. ``1`` is a dim of size one that broadcasts, ``[]`` a tensor without dims. What the notation can't say is an
argument of ``Rule``.

Operands are the tensors a node reads, in the order of its arguments (``Node.operands``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import State

Term = tuple[str, ...]  # the factors of one dim, outermost first; () for a broadcast "1"


@dataclass(frozen=True)
class AxisStrategy:
    """One way to run an operator on one axis.

    inputs   the state of each operand (R for one that carries no gradient and is whole)
    output   the state of the result
    factor   what is split, "" for replicated and partial
    body     name of a function of autoplan.runtime.ops that runs instead of the operator, "" for the operator
             itself on local tensors; it takes the operator's arguments and ``axes=``, the axes it is used on
    communicates  the body has collectives of its own, so it can't be used on the virtual axis
    scaled   the local result is divided by the axis' size (a mean over a split dim is a sum of scaled means)
    single   the body runs over one axis alone
    """

    inputs: tuple[State, ...]
    output: State
    factor: str = ""
    body: str = ""
    communicates: bool = False
    scaled: bool = False
    single: bool = False


@dataclass(frozen=True)
class Rule:
    """What may be split, and what a split does.

    spec     the notation
    sizes    sizes of factors that no dim has alone: {"d": 64} in "b (h d) -> b h d" is not needed where a result dim
             is d alone
    whole    factors that never split (a softmax's dim)
    linear   groups of operands through which partial sums pass: ((0,), (1,)) for a product, ((0, 1),) for a sum.
             All operands of a group are partial together, the others are R; the result is partial
    reduce   how a split factor that the result lacks is reduced: "sum", "max", or "mean" (a sum of scaled means)
    extra    further strategies that the notation can't say, with a body where the code differs by rank
    shape_arg  position among args, or name among kwargs, of an argument that holds the result's shape: it becomes
             local when the result is split (view, expand)
    factor_args  (position among args, factor) of arguments that are the size of a factor: they become local when it
             is split (a convolution's groups)
    cost     "matmul" (2 FLOPs for each element of the result and of what the second operand has besides),
             "attention", "experts" (grouped products), "memory" (bytes read and written), "free" (views)
    saved    what autograd keeps for the backward: operand positions, and "out" for the result; see ``kept``
    saved_bytes_per_element  further bytes kept for each element of the result (a dropout mask, say)
    compiled_saved_bytes_per_element  what torch.compile keeps in place of all of these, where it is something else
    """

    spec: str
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    whole: frozenset[str] | str | Sequence[str] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    reduce: str = "sum"
    extra: tuple[AxisStrategy, ...] = ()
    shape_arg: int | str | None = None
    factor_args: tuple[tuple[int, str], ...] = ()
    cost: str = "memory"
    saved: tuple[int | str, ...] = ()
    saved_bytes_per_element: float = 0.0
    compiled_saved_bytes_per_element: float | None = None

    def compiled(self) -> "Rule":
        """Of the operator as torch.compile runs it."""
        if self.compiled_saved_bytes_per_element is None:
            return self
        return replace(self, saved=(), saved_bytes_per_element=self.compiled_saved_bytes_per_element)

    @cached_property
    def operands(self) -> tuple[tuple[Term, ...], ...]:
        left = self.spec.split("->")[0].strip()
        return tuple(parse_terms(part) for part in left.split(",")) if left else ()

    @cached_property
    def result(self) -> tuple[Term, ...]:
        return parse_terms(self.spec.split("->")[1])

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Every factor once, in the order of first appearance."""
        terms = [term for operand in (*self.operands, self.result) for term in operand]
        return tuple(dict.fromkeys(factor for term in terms for factor in term))

    @cached_property
    def whole_factors(self) -> frozenset[str]:
        return frozenset((self.whole,)) if isinstance(self.whole, str) else frozenset(self.whole)


def parse_terms(text: str) -> tuple[Term, ...]:
    """``"b (h d) 1"`` -> (("b",), ("h", "d"), ()); ``"[]"`` -> ()."""
    terms: list[Term] = []
    group: list[str] | None = None
    for word in text.replace("[]", "").replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            group = []
        elif word == ")":
            assert group is not None, f"unbalanced parentheses in {text!r}"
            terms.append(tuple(group))
            group = None
        elif group is not None:
            group.append(word)
        else:
            terms.append(() if word == "1" else (word,))
    assert group is None, f"unbalanced parentheses in {text!r}"
    return tuple(terms)


def letters(x: TensorType | int, prefix: str = "d") -> str:
    """One factor for each dim of a tensor (or of a rank): ``"d0 d1 d2"``. Dims of size one keep a factor."""
    rank = x if isinstance(x, int) else len(x.shape)
    return " ".join(f"{prefix}{i}" for i in range(rank)) or "[]"


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result where operands of these shapes meet element by element, aligned at their last dims."""
    rank = max((len(shape) for shape in shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = tuple(next((size for size in dims if size != 1), 1) for dims in zip(*aligned, strict=True))
    assert all(s in (1, size) for shape in aligned for s, size in zip(shape, sizes, strict=True)), f"{shapes}"
    return sizes


def broadcast(x: TensorType, shape: tuple[int, ...], prefix: str = "d") -> str:
    """The terms of an operand that is broadcast to a shape whose dims are ``letters(len(shape))``: "d1 1 d3"."""
    offset = len(shape) - len(x.shape)
    terms = ["1" if size == 1 and shape[offset + i] != 1 else f"{prefix}{offset + i}" for i, size in enumerate(x.shape)]
    return " ".join(terms) or "[]"


def factor_sizes(rule: Rule, operands: Sequence[TensorType], result: TensorType) -> dict[str, int]:
    """The size of every factor, from the dims where it stands alone, from ``sizes``, and from compound dims where all
    others are known; an assertion fails where the notation and the shapes disagree."""
    sizes = dict(rule.sizes)
    dims = [
        (term, size)
        for terms, kind in zip((*rule.operands, rule.result), (*operands, result), strict=True)
        for term, size in zip(terms, kind.shape, strict=True)
    ]
    for term, size in dims:
        if len(term) == 1:
            known = sizes.setdefault(term[0], size)
            assert known == size, f"{rule.spec}: factor {term[0]} is {known} and {size}"
    for term, size in sorted(dims, key=lambda pair: len(pair[0])):
        unknown = [factor for factor in term if factor not in sizes]
        known = math.prod(sizes[factor] for factor in term if factor in sizes)
        if len(unknown) == 1:
            sizes[unknown[0]] = size // known
        assert math.prod(sizes[factor] for factor in term) == size, f"{rule.spec}: {term} is not {size}, with {sizes}"
    return sizes


def kept(rule: Rule, carries: Sequence[bool]) -> tuple[int | str, ...]:
    """What autograd keeps of ``saved``, given which operands carry a gradient.

    An operator that is linear in an operand needs it only for the gradients of the others: a product with a constant
    keeps the constant alone, a linear with a frozen weight keeps nothing of its input.
    """
    if not any(carries):
        return ()
    alone = {group[0] for group in rule.linear if len(group) == 1}
    return tuple(s for s in rule.saved if s not in alone or any(c for i, c in enumerate(carries) if i != s))
