"""A node at its new size: the arguments that are sizes follow, those that can't be told apart are refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoplan.errors import RescaleError
from autoplan.ir.graph import Argument, Node, Ref, TensorType
from autoplan.rules.registry import Rule, factor_sizes, rule_of
from autoplan.trace.rescale.dim_sizes import Slice, moved
from autoplan.trace.rescale.dims import REMEDY, Dims

Args = list[Argument]
SCALES = ("aten.mul.Tensor", "aten.div.Tensor", "aten.div.Tensor_mode", "aten.floor_divide.default")


def rewritten(
    dims: Dims, scope: int, node: Node, before: Mapping[str, TensorType], after: Mapping[str, TensorType],
    moving: frozenset[int],
) -> Node:  # fmt: skip
    """The node with its new type and arguments.

    before, after  types of the values it reads, as traced and rescaled
    moving         traced sizes that change
    """
    shape = tuple(dims.known((scope, node.name, d)) for d in range(len(node.type.shape)))
    refuse_baked(dims, node, moving)
    args, kwargs = list(node.args), dict(node.kwargs)
    special = SPECIAL.get(node.op)
    if special is not None:
        special(dims, scope, node, args, shape)
    else:
        own_shape(rule_of(node, before), args, kwargs, shape)
    new = replace(node, args=tuple(args), kwargs=tuple(kwargs.items()), type=replace(node.type, shape=shape))
    check(dims, new, after)
    return new


def own_shape(rule: Rule, args: Args, kwargs: dict[str, Argument], shape: tuple[int, ...]) -> None:
    """The result's shape where it is an argument."""
    if isinstance(rule.shape_arg, int):
        args[rule.shape_arg] = shape
    elif rule.shape_arg is not None:
        kwargs[rule.shape_arg] = shape


def refuse_baked(dims: Dims, node: Node, moving: frozenset[int]) -> None:
    """A product or quotient with a whole number that is one of the sizes: a mean written out, most likely."""
    if node.op not in SCALES:
        return
    for argument in node.args:
        if isinstance(argument, int) and not isinstance(argument, bool) and argument in moving:
            raise RescaleError(
                dims.asked,
                f"{node.name} ({node.op}) computes with the number {argument}, which may be the size that changes",
                REMEDY,
            )


def check(dims: Dims, node: Node, types: Mapping[str, TensorType]) -> None:
    """Whether the operator's rule agrees with the new sizes."""
    try:
        factor_sizes(rule_of(node, types), [types[name] for name in node.operands], node.type)
    except AssertionError as error:
        said = f"{node.name} ({node.op}{' of ' + node.module if node.module else ''}) can't run at that size: {error}"
        raise RescaleError(dims.asked, said, REMEDY) from None


def new_slice(dims: Dims, scope: int, node: Node, args: Args, shape: tuple[int, ...]) -> None:
    """[start, stop) of a dim: its length is known; what is counted from which end follows from where it began."""
    if len(node.args) > 4:
        new_strided(dims, scope, node, args, shape)
        return
    ref, dim, start, stop = node.args
    assert isinstance(ref, Ref) and isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int)
    key = (scope, ref.name, dim)
    was, size, length = dims.was(key), dims.known(key), shape[dim]
    if not dims.changed(key) or start == 0:
        begin = start
    elif stop == was:
        begin = size - length
    else:
        begin = moved(dims, Slice(key, key, start, stop, False, node.name), start)
    if begin + length > size or begin < 0:
        raise dims.error(key, f"{node.name} reads elements {begin} to {begin + length} of {ref.name}, which has {size}")
    args[2], args[3] = begin, begin + length


def new_strided(dims: Dims, scope: int, node: Node, args: Args, shape: tuple[int, ...]) -> None:
    """The same of every step-th element: where it ends says no more than how many there are, so that it moves with the
    sliced dim, or with the result's where that alone changes."""
    ref, dim, start, stop, step = node.args
    assert isinstance(ref, Ref) and isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int)
    assert isinstance(step, int)
    key, length = (scope, ref.name, dim), shape[dim]
    size, begin, end = dims.known(key), start, stop
    if dims.changed(key):
        at = Slice(key, key, start, stop, False, node.name, step)
        begin, end = moved(dims, at, start), moved(dims, at, stop)
    elif length != node.type.shape[dim]:
        end = min(size, start + length * step)
    if -(-(end - begin) // step) != length:
        few = -(-(end - begin) // step)
        raise dims.error(key, f"{node.name} has {few} elements of {ref.name} in steps of {step}, and {length} are read")
    args[2], args[3] = begin, end


def new_select(dims: Dims, scope: int, node: Node, args: Args, shape: tuple[int, ...]) -> None:
    ref, dim, index = node.args
    assert isinstance(ref, Ref) and isinstance(dim, int) and isinstance(index, int)
    key = (scope, ref.name, dim)
    if dims.changed(key) and index >= 0:
        at = Slice(key, key, index, index + 1, False, node.name)
        args[2] = index if index == 0 else moved(dims, at, index + 1) - 1


def new_arange(dims: Dims, scope: int, node: Node, args: Args, shape: tuple[int, ...]) -> None:
    """As many elements, from the same first one by the same step."""
    if shape == node.type.shape:
        return
    if any(not isinstance(a, int) for a in node.args):
        raise dims.error((scope, node.name, 0), "its bounds aren't whole numbers")
    if len(args) == 1:
        args[0] = shape[0]
    else:
        start, step = args[0], args[2] if len(args) > 2 else 1
        args[1] = start + step * shape[0]  # type: ignore[operator]


def new_repeat(dims: Dims, scope: int, node: Node, args: Args, shape: tuple[int, ...]) -> None:
    ref, times = node.args
    assert isinstance(ref, Ref) and isinstance(times, tuple)
    rank = operand_rank(dims, scope, ref.name)
    new = len(times) - rank
    sizes = [dims.known((scope, ref.name, d)) for d in range(rank)]
    counts = []
    for dim, size in enumerate(shape):
        part = sizes[dim - new] if dim >= new else 1
        if size % part:
            raise dims.error((scope, node.name, dim), f"{size} is no multiple of the {part} that are repeated")
        counts.append(size // part)
    args[1] = tuple(counts)


def operand_rank(dims: Dims, scope: int, name: str) -> int:
    rank = 0
    while (scope, name, rank) in dims.parent:
        rank += 1
    return rank


SPECIAL: Mapping[str, Callable[[Dims, int, Node, Args, tuple[int, ...]], None]] = {
    "aten.slice.Tensor": new_slice,
    "aten.select.int": new_select,
    "aten.arange.default": new_arange,
    "aten.arange.start": new_arange,
    "aten.arange.start_step": new_arange,
    "aten.repeat.default": new_repeat,
}
