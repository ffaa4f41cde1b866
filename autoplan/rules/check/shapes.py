"""Which dims of an operator go together, found by running it with one size after another changed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Dim = tuple[int, int]  # operand, dim
Run = Callable[[Sequence[Shape]], "Shape | None"]  # operands' shapes -> the result's, None where it fails

NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Factors:
    """What was found: the dims of each factor among the operands, and the dims of the result that it enters."""

    operands: tuple[frozenset[Dim], ...]
    results: tuple[frozenset[int], ...]


def find_factors(shapes: Sequence[Shape], run: Run) -> Factors | None:
    """The factors of an operator whose operands have these shapes; None where it can't be run on them.

    A dim that can be twice as long by itself is a factor; one that can't, together with the fewest others of its size
    with which it can. Dims of size one are left out: they may be there to broadcast.
    """
    base = run(shapes)
    if base is None:
        return None
    left = [(i, d) for i, shape in enumerate(shapes) for d, size in enumerate(shape) if size > 1]
    factors, results = [], []
    while left:
        group, changed = together(left[0], left, shapes, base, run)
        factors.append(group)
        results.append(changed)
        left = [dim for dim in left if dim not in group]
    return Factors(tuple(factors), tuple(results))


def together(
    first: Dim, left: Sequence[Dim], shapes: Sequence[Shape], base: Shape, run: Run
) -> tuple[frozenset[Dim], frozenset[int]]:
    """The dims that have to change with one, and the result's dims that do; the dim alone, entering nothing, where
    none helps."""
    size = shapes[first[0]][first[1]]
    alike = [dim for dim in left if dim != first and shapes[dim[0]][dim[1]] == size]
    tries = [{first}, *({first, dim} for dim in alike), {first, *alike}]
    for group in tries:
        result = run(longer(shapes, group))
        if result is not None and len(result) == len(base):
            changed = frozenset(d for d, (a, b) in enumerate(zip(base, result, strict=True)) if a != b)
            return frozenset(group), changed
    return frozenset((first,)), frozenset()


def longer(shapes: Sequence[Shape], group: set[Dim]) -> list[Shape]:
    return [
        tuple(2 * size if (i, d) in group else size for d, size in enumerate(shape)) for i, shape in enumerate(shapes)
    ]


def notation_of(factors: Factors, shapes: Sequence[Shape], result: Shape) -> tuple[str, frozenset[str]] | None:
    """(the notation, factors that have to stay whole because nothing is known of them); None where there is none.

    A dim of the result that several factors enter is their product in one order or the other, else it is left whole.
    """
    names = [NAMES[i] for i in range(len(factors.operands))]
    of_dim = {dim: name for name, group in zip(names, factors.operands, strict=True) for dim in group}
    sizes = {of_dim[i, d]: shapes[i][d] for i, d in of_dim}
    whole = {n for n, group in zip(names, factors.operands, strict=True) if twice(group)}
    whole |= {name for name, entered in zip(names, factors.results, strict=True) if len(entered) > 1}
    terms = [" ".join(of_dim.get((i, d), "1") for d in range(len(shape))) or "[]" for i, shape in enumerate(shapes)]
    entering: list[str] = []
    for d, size in enumerate(result):
        inside = [n for n, entered in zip(names, factors.results, strict=True) if d in entered and n not in whole]
        spelt, unknown = result_term(inside, size, sizes, f"{NAMES[-1]}{d}")
        entering.append(spelt)
        whole |= unknown
    if len(names) >= len(NAMES) - 1:
        return None
    return f"{', '.join(terms)} -> {' '.join(entering) or '[]'}", frozenset(whole)


def twice(group: frozenset[Dim]) -> bool:
    """Whether an operand has the factor in two dims."""
    return len({operand for operand, _ in group}) < len(group)


def result_term(inside: list[str], size: int, sizes: Mapping[str, int], fresh: str) -> tuple[str, set[str]]:
    """(how a dim of the result is spelt, the factors in it that can't split)."""
    if size == 1 and not inside:
        return "1", set()
    if len(inside) == 1 and sizes[inside[0]] == size:
        return inside[0], set()
    if len(inside) > 1 and math.prod(sizes[n] for n in inside) == size:
        return f"({' '.join(inside)})", set()
    return fresh, {fresh, *inside}
