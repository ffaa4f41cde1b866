"""What crosses the links, and what each rank does beside it: collectives without types and without gradients.

Parts lie in the order of the axis' *members*, which may differ from the order of the process group's ranks
(``MeshAxis.places``): what goes out is put into the group's order and what comes in is put back. Results are waited for
and, where something crossed, contiguous.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work
from torch.distributed.distributed_c10d import AllreduceOptions
from torch.nn import functional

from autoplan.runtime.collectives.mesh_axes import MeshAxis

# The operators below torch.distributed._functional_collectives are private, yet the only collectives that a compiler
# can trace; that module's own functions change names between releases and return tensors still in flight.
_wire = torch.ops._c10d_functional


def _run(operator: Callable[..., Tensor], x: Tensor, *arguments: object) -> Tensor:
    """One of these operators, without its gradient, which torch registers in Python: asking for it takes longer than a
    small sum. The guard that leaves it out has no public name, either."""
    if torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
        return operator(x, *arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(x, *arguments)


def _in_pairs(send: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Complex numbers cross as pairs, a last dim of two: no backend adds them up, and not all pass them on."""

    @wraps(send)
    def sent(x: Tensor, *arguments: object) -> Tensor:
        if not x.is_complex():
            return send(x, *arguments)
        return torch.view_as_complex(send(torch.view_as_real(x.resolve_conj()), *arguments).contiguous())

    return sent


def identity(x: Tensor, axis: MeshAxis) -> Tensor:
    return x


def mask(x: Tensor, axis: MeshAxis) -> Tensor:
    """The first member's x as it is, zeros on the others."""
    return x if axis.rank == 0 else torch.zeros_like(x)


@_in_pairs
def all_reduce_sum(x: Tensor, axis: MeshAxis) -> Tensor:
    return _run(_wire.wait_tensor, _run(_wire.all_reduce, x.contiguous(), "sum", _group(axis)))


def sums_in_place(x: Tensor) -> bool:
    """Whether ``sum_in_place`` takes it: a compiler decides itself what is written where."""
    return x.is_contiguous() and not x.is_complex() and not torch.compiler.is_compiling()


def sum_in_place(x: Tensor, axis: MeshAxis) -> Work:
    """Starts the sum over the axis in x's own memory, which nobody reads before it is waited for."""
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    return axis.group.allreduce([x])


def max_in_place(x: Tensor, axis: MeshAxis) -> Work:
    """Likewise the greatest over the axis, element by element."""
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    given = AllreduceOptions()
    given.reduceOp = ReduceOp(ReduceOp.MAX)
    return axis.group.allreduce([x], given)


def all_reduce_max(x: Tensor, axis: MeshAxis) -> Tensor:
    return _run(_wire.wait_tensor, _run(_wire.all_reduce, x.contiguous(), "max", _group(axis)))


@_in_pairs
def all_gather(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """All members' parts joined along dim."""
    return _joined(_run(_wire.all_gather_into_tensor, x.contiguous(), axis.size, _group(axis)), x.shape, dim, axis)


def gather_whole(x: Tensor, group: ProcessGroup) -> Tensor:
    """[ranks, ...]: what each rank of a group has, in the group's order."""
    gathered = _run(_wire.wait_tensor, _run(_wire.all_gather_into_tensor, x, group.size(), group.group_name))
    return gathered.view(group.size(), *x.shape)


def sum_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's row of the sum of all ranks' x: [ranks, ...], in the group's order."""
    mine = _run(_wire.reduce_scatter_tensor, x, "sum", group.size(), group.group_name)
    return _run(_wire.wait_tensor, mine).view(x.shape[1:])


def gather_twice(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """The same by an operator that a compiled segment's policy doesn't keep (``memory.selective``)."""
    if x.is_complex() or not torch.compiler.is_compiling():
        return all_gather(x, dim, axis)
    x = x.contiguous()
    return _joined(_gather_after(x, x, axis.size, _group(axis)), x.shape, dim, axis)


def _joined(flying: Tensor, part: Sequence[int], dim: int, axis: MeshAxis) -> Tensor:
    """Parts of this shape, one after another and maybe still in flight, joined along dim."""
    stacked = _run(_wire.wait_tensor, flying)
    if dim == 0 and not axis.places:
        return stacked
    return torch.cat(_of_members(stacked.view(axis.size, *part).unbind(), axis), dim)


@_in_pairs
def reduce_scatter_sum(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """This member's part, along dim, of the sum of the members' tensors."""
    return _scatter(x, dim, "sum", axis)


def reduce_scatter_max(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    return _scatter(x, dim, "max", axis)


def _scatter(x: Tensor, dim: int, reduction: str, axis: MeshAxis) -> Tensor:
    part = _run(_wire.reduce_scatter_tensor, _stacked(x, dim, axis), reduction, axis.size, _group(axis))
    return _run(_wire.wait_tensor, part)


def _stacked(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """The members' parts along dim one after another, in the process group's order."""
    _check(x, dim, axis)
    stacked = x if dim == 0 and not axis.places else torch.cat(_of_places(x.chunk(axis.size, dim), axis))
    return stacked.contiguous()


def shard(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """This member's part along dim, in memory of its own: a view that is kept would keep the whole."""
    _check(x, dim, axis)
    length = x.shape[dim] // axis.size
    return x.narrow(dim, axis.rank * length, length).clone(memory_format=torch.contiguous_format)


def pad(x: Tensor, dim: int, axis: MeshAxis) -> Tensor:
    """The whole tensor with this member's part in its place along dim and zeros elsewhere."""
    length = x.shape[dim]
    before, after = axis.rank * length, (axis.size - 1 - axis.rank) * length
    inner = [0] * (2 * (x.ndim - 1 - dim))
    return functional.pad(x, [*inner, before, after])


@_in_pairs
def all_to_all(x: Tensor, source: int, target: int, axis: MeshAxis) -> Tensor:
    """From whole along target and split along source to the reverse: part j goes to member j."""
    _check(x, target, axis)
    parts = torch.stack(_of_places(x.chunk(axis.size, target), axis))
    ones = [1] * axis.size
    parts = _run(_wire.wait_tensor, _run(_wire.all_to_all_single, parts, ones, ones, _group(axis)))
    return torch.cat(_of_members(parts.unbind(), axis), source)


def all_to_all_back(x: Tensor, source: int, target: int, axis: MeshAxis) -> Tensor:
    return all_to_all(x, target, source, axis)


def all_to_all_v(parts: Sequence[Tensor], lengths: Sequence[int], axis: MeshAxis) -> list[Tensor]:
    """Sends each member a part, of any length, and receives one of this length from each.

    parts    one flat tensor for each member, in the members' order
    lengths  elements of what comes back, in the members' order
    """
    if parts[0].is_complex():
        pairs = [torch.view_as_real(part.resolve_conj()).flatten() for part in parts]
        return [torch.view_as_complex(part.view(-1, 2)) for part in all_to_all_v(pairs, [2 * n for n in lengths], axis)]
    outgoing = _of_places(parts, axis)
    expected = [lengths[axis.places.index(place)] for place in range(axis.size)] if axis.places else list(lengths)
    sizes = [part.numel() for part in outgoing]
    arrived = _run(_wire.wait_tensor, _run(_wire.all_to_all_single, torch.cat(outgoing), expected, sizes, _group(axis)))
    return _of_members(arrived.split(expected), axis)


def all_to_all_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: str, places: Sequence[int]
) -> Tensor:
    """Sends each member some of the rows, which lie one member after another, and receives as many as it sends.

    sent, received  rows, by member
    group, places   of the axis (``MeshAxis``), as a custom operator is told of it
    """
    return landed(fly(rows, sent, received, group, places), received, places)


def fly(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: str, places: Sequence[int]) -> Tensor:
    """Starts ``all_to_all_rows``: a tensor in flight, which ``landed`` waits for. What is computed until then hides it.
    """
    if not places:
        return _run(_wire.all_to_all_single, rows, list(received), list(sent), group)
    of_places = [places.index(place) for place in range(len(places))]
    parts, expected = rows.split(list(sent)), [received[member] for member in of_places]
    outgoing = torch.cat([parts[member] for member in of_places])
    return _run(_wire.all_to_all_single, outgoing, expected, [sent[member] for member in of_places], group)


def landed(flying: Tensor, received: Sequence[int], places: Sequence[int]) -> Tensor:
    """The rows that ``fly`` has under way, one member after another."""
    arrived = _run(_wire.wait_tensor, flying)
    if not places:
        return arrived
    coming = arrived.split([received[places.index(place)] for place in range(len(places))])
    return torch.cat([coming[place] for place in places])


def start_shift(x: Tensor, places: int, axis: MeshAxis) -> Tensor:
    """Starts to send x, flat, to the member so many places on, past the last one to the first. What comes from the
    member as many places back, in flight until ``wait``: what is computed meanwhile hides it."""
    sent, received = [0] * axis.size, [0] * axis.size
    sent[_place((axis.rank + places) % axis.size, axis)] = x.numel()
    received[_place((axis.rank - places) % axis.size, axis)] = x.numel()
    return _run(_wire.all_to_all_single, x.contiguous(), received, sent, _group(axis))


def start_sum(x: Tensor, dim: int | None, axis: MeshAxis) -> Callable[[], Tensor]:
    """Starts the sum of the members' tensors, of real numbers and in memory that nobody else reads; this member's part
    of it along ``dim``, or all of it where that is None. What is computed until the result is asked for hides it."""
    if dim is None and sums_in_place(x):
        return partial(_arrived, sum_in_place(x, axis), x)
    if dim is None:
        return partial(wait, _run(_wire.all_reduce, x.contiguous(), "sum", _group(axis)))
    return partial(wait, _run(_wire.reduce_scatter_tensor, _stacked(x, dim, axis), "sum", axis.size, _group(axis)))


def start_gather(x: Tensor, dim: int, axis: MeshAxis, after: Tensor) -> Callable[[], Tensor]:
    """Starts to join all members' parts along dim, in a backward that has ``after``; what is computed until the result
    is asked for hides it. A compiler that sees no more than the gather would take the forward's, and keep it."""
    x = x.contiguous()
    if torch.compiler.is_compiling():
        flying = _gather_after(x, after, axis.size, _group(axis))
    else:
        flying = _run(_wire.all_gather_into_tensor, x, axis.size, _group(axis))
    return partial(_joined, flying, x.shape, dim, axis)


def start_stack(x: Tensor, axis: MeshAxis) -> Callable[[], Tensor]:
    """Starts to gather x, of real numbers, of all members in their order, [n, ...]."""
    flying = _run(_wire.all_gather_into_tensor, x.contiguous(), axis.size, _group(axis))
    return partial(_stack_of_members, flying, x.shape, axis)


def _stack_of_members(flying: Tensor, part: Sequence[int], axis: MeshAxis) -> Tensor:
    stacked = _run(_wire.wait_tensor, flying).view(axis.size, *part)
    return torch.stack(_of_members(stacked.unbind(), axis)) if axis.places else stacked


def start_scatter(x: Tensor, axis: MeshAxis) -> Callable[[], Tensor]:
    """Starts the sum of the members' tensors [n, ...], of real numbers: this member's part [...] of it."""
    stacked = torch.stack(_of_places(x.unbind(), axis)) if axis.places else x.contiguous()
    flying = _run(_wire.reduce_scatter_tensor, stacked.flatten(0, 1), "sum", axis.size, _group(axis))
    return partial(wait, flying)


@torch.library.custom_op("autoplan::gather_after", mutates_args=())
def _gather_after(x: Tensor, after: Tensor, size: int, group: str) -> Tensor:
    """A gather that comes after another tensor is known; in flight until it is waited for."""
    return _run(_wire.all_gather_into_tensor, x, size, group)


@_gather_after.register_fake
def _(x: Tensor, after: Tensor, size: int, group: str) -> Tensor:
    return x.new_empty((size * x.shape[0], *x.shape[1:]))


def _arrived(work: Work, x: Tensor) -> Tensor:
    work.wait()
    return x


def wait(x: Tensor) -> Tensor:
    """What was in flight, arrived."""
    return _run(_wire.wait_tensor, x)


def _place(member: int, axis: MeshAxis) -> int:
    """A member's rank in the process group."""
    return axis.places[member] if axis.places else member


def _group(axis: MeshAxis) -> str:
    assert axis.group is not None, f"axis {axis.name} of size {axis.size} has no process group"
    return axis.group.group_name


def _check(x: Tensor, dim: int, axis: MeshAxis) -> None:
    assert x.shape[dim] % axis.size == 0, f"dim {dim} of {tuple(x.shape)} doesn't divide over {axis.name}={axis.size}"


def _of_places(parts: Sequence[Tensor], axis: MeshAxis) -> list[Tensor]:
    """From the members' order into the process group's."""
    return [parts[axis.places.index(place)] for place in range(axis.size)] if axis.places else list(parts)


def _of_members(parts: Sequence[Tensor], axis: MeshAxis) -> list[Tensor]:
    """From the process group's order into the members'."""
    return [parts[place] for place in axis.places] if axis.places else list(parts)
