"""From the sizes that are asked for to the size of every dim.

Equations hold between dims of one operator: a reshape multiplies, a concatenation adds. Each gives the last size that
it lacks. Where nothing follows any more, the least doubtful assumption is made, one at a time, in this order: what
came from unchanged dims is unchanged; a dim flattened from several comes apart into the same ones; a slice ends where
it ended, counted from the end that was nearer; all that is left keeps its size, unless a tensor was made with a size
that now changes, of which nobody can tell whether it was that one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.trace.rescale.dims import Dims, Key


@dataclass(frozen=True)
class Product:
    """The product of some dims is the product of others."""

    left: tuple[Key, ...]
    right: tuple[Key, ...]
    why: str


@dataclass(frozen=True)
class Sum:
    """The sum of some dims and a number is another dim."""

    parts: tuple[Key, ...]
    more: int
    whole: Key
    why: str


@dataclass(frozen=True)
class Slice:
    """Every ``step``-th element of [start, stop) of one dim; ``table``: perhaps as many of a longer table as the
    sequence has."""

    source: Key
    result: Key
    start: int
    stop: int
    table: bool
    why: str
    step: int = 1


@dataclass(frozen=True)
class Repeat:
    """A dim, so many times over."""

    source: Key
    result: Key
    times: int
    why: str


Equation = Product | Sum | Slice | Repeat


def solve(dims: Dims, equations: Sequence[Equation], made: Sequence[Key], moving: frozenset[int]) -> None:
    """Gives every class its size. RescaleError where two sizes meet in one, or none can be told.

    made    dims that stand in the program as a size, and aren't computed from an operand
    moving  the traced sizes that change
    """
    while True:
        spread(dims, equations)
        if not any(assumption(dims, equations) for assumption in ASSUMPTIONS):
            break
    for key in made:
        if dims.size(key) is None and dims.was(key) in moving:
            raise dims.error(key, "the program makes it with that very size, and nothing says whether it is the one")
    for key in dims.parent:
        if dims.size(key) is None:
            dims.give(key, dims.was(key), "what was traced")
    spread(dims, equations)


def spread(dims: Dims, equations: Sequence[Equation]) -> None:
    while any([follow(dims, equation) for equation in equations]):
        pass


def follow(dims: Dims, equation: Equation) -> bool:
    """Gives the last size that an equation lacks; whether it did."""
    if isinstance(equation, Product):
        return multiply(dims, equation)
    if isinstance(equation, Sum):
        return add_up(dims, equation)
    return False


def multiply(dims: Dims, equation: Product) -> bool:
    left, right = [dims.find(k) for k in equation.left], [dims.find(k) for k in equation.right]
    for key in list(left):
        if key in right:
            left.remove(key)
            right.remove(key)
    lacking = [(key, side) for side in (left, right) for key in side if dims.size(key) is None]
    if len(lacking) > 1:
        return False
    first, second = (math.prod(size for k in side if (size := dims.size(k)) is not None) for side in (left, right))
    if not lacking:
        if first != second:
            raise dims.error((left or right)[0], f"{equation.why} would have {first} elements for {second}")
        return False
    key, side = lacking[0]
    whole, part = (second, first) if side is left else (first, second)
    if whole % part:
        raise dims.error(key, f"{equation.why} splits {whole} by {part}, which doesn't divide it")
    return dims.give(key, whole // part, equation.why)


def add_up(dims: Dims, equation: Sum) -> bool:
    lacking = [key for key in equation.parts if dims.size(key) is None]
    known = equation.more + sum(size for key in equation.parts if (size := dims.size(key)) is not None)
    if not lacking:
        return dims.give(equation.whole, known, equation.why)
    whole = dims.size(equation.whole)
    if whole is not None and len({dims.find(key) for key in lacking}) == 1 and (whole - known) % len(lacking) == 0:
        return dims.give(lacking[0], (whole - known) // len(lacking), equation.why)
    return False


def unchanged_split(dims: Dims, equations: Sequence[Equation]) -> bool:
    """What a reshape makes of unchanged dims is unchanged."""
    found = False
    for equation in equations:
        if not isinstance(equation, Product):
            continue
        for known, other in ((equation.left, equation.right), (equation.right, equation.left)):
            if all(dims.size(k) == dims.was(k) for k in known):
                found |= any([dims.size(k) is None and dims.give(k, dims.was(k), equation.why) for k in other])
    return found


def come_apart(dims: Dims, equations: Sequence[Equation]) -> bool:
    """A dim that was flattened from several and is split again into as many, as long, is split into those; so are
    others that were flattened into it, a mask of ones say."""
    flattened: dict[Key, tuple[Key, ...]] = {}
    found = False
    for equation in (e for e in equations if isinstance(e, Product)):
        one, parts = sorted((equation.left, equation.right), key=len)
        if len(one) > 1 or len(parts) == 1:
            continue
        known = flattened.setdefault(dims.find(one[0]), parts)
        for before, after in aligned(dims, known, parts):
            if len(before) == len(after) == 1:
                found |= dims.unite(before[0], after[0])
    return found


def aligned(dims: Dims, before: Sequence[Key], after: Sequence[Key]) -> Iterator[tuple[tuple[Key, ...], ...]]:
    """Two shapes of as many elements, cut wherever both have a border between dims, outermost first."""
    left, right = list(before), list(after)
    while left or right:
        taken: tuple[list[Key], list[Key]] = ([], [])
        sizes = [1, 1]
        while not all(taken) or sizes[0] != sizes[1]:
            side = 0 if sizes[0] < sizes[1] or (sizes[0] == sizes[1] and not taken[0]) else 1
            source = (left, right)[side]
            if not source:
                break
            key = source.pop(0)
            taken[side].append(key)
            sizes[side] *= dims.was(key)
        yield tuple(taken[0]), tuple(taken[1])


def repeated(dims: Dims, equations: Sequence[Equation]) -> bool:
    found = False
    for e in equations:
        if isinstance(e, Repeat) and dims.size(e.result) is None and (size := dims.size(e.source)) is not None:
            found |= dims.give(e.result, size * e.times, e.why)
    return found


def sliced(dims: Dims, equations: Sequence[Equation]) -> bool:
    """The first slice whose source is known and whose result isn't; not of a table, whose result only its readers can
    tell."""
    for e in equations:
        if not isinstance(e, Slice) or dims.size(e.result) is not None or dims.size(e.source) is None:
            continue
        if dims.changed(e.source) or not e.table:
            return dims.give(e.result, length(dims, e), e.why)
    return False


def length(dims: Dims, e: Slice) -> int:
    """Elements of a slice of a dim that changes, each of its bounds counted from the end that it is nearer to."""
    was, size = dims.was(e.source), dims.known(e.source)
    span = e.stop - e.start if was == size else moved(dims, e, e.stop) - moved(dims, e, e.start)
    return -(-span // e.step)


def moved(dims: Dims, e: Slice, bound: int) -> int:
    """Where a bound of a slice comes to lie when the sliced dim changes."""
    was, size = dims.was(e.source), dims.known(e.source)
    front, back = bound, was - bound
    if front < back / 2:
        return bound
    if back < front / 2:
        return size - back
    raise dims.error(e.source, f"{e.why} cuts it at {bound}, and nothing says from which end that is counted")


ASSUMPTIONS: tuple[Callable[[Dims, Sequence[Equation]], bool], ...] = (unchanged_split, come_apart, repeated, sliced)
