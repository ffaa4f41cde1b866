"""The batch of a forward alone: its rows as ranks give them, agreed on before anything is computed.

Each rank gives the whole batch, or its own rows of it. Ranks of one replica must give the same. Where the replicas give
the same, too, that is the whole batch; where each gives its own rows, these are put together in the order of the data
axis, any number from each. So a short batch is never taken for a rank's rows, nor counted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import InputsError
from autoplan.ir.typed_program import TypedValue
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.runtime.agreement.fingerprint import Fingerprint
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.objects import from_all, together
from autoplan.runtime.data.microbatches import Batch, named
from autoplan.runtime.program_spec import DATA, ProgramSpec

Digest = tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """What one rank gives: its place on the data axis, its rows, a hash of each tensor, of those without rows apart."""

    replica: int
    rows: int
    digests: Digest
    fixed: Digest
    tokens: int = 0


def whole_batch(
    spec: ProgramSpec, batch: Batch, axes: Mapping[str, MeshAxis], device: torch.device
) -> tuple[dict[str, Tensor], BatchSizes]:
    """The whole batch by name on every rank, and its sizes.

    batch  the whole of it, 1 to as many rows as planned, of as many tokens or fewer; or this rank's rows
    InputsError, on every rank, where names, shapes or dtypes aren't the plan's, where there are too many rows, and
    where the ranks of one replica give different ones.
    """
    given = together(lambda: fitting(spec, batch, device))
    rows, tokens, data = rows_of(spec, given), tokens_of(spec, given), axes.get(DATA, MeshAxis(DATA, 1, 0))
    with_rows, without = [[v for v in spec.lowered.batch if has_rows(spec, v) == kind] for kind in (True, False)]
    of = Fingerprint(device).of
    digests, fixed = (tuple(int(of([given[v.name]])) for v in values) for values in (with_rows, without))
    shown = from_all(Shown(data.rank, rows, digests, fixed, tokens))
    total = agreed(shown)
    planned = planned_rows(spec)
    if total > planned:
        counts = [one.rows for one in by_replica(shown)]
        said = f"{total} rows" if len(set(map(lambda s: s.digests, shown))) == 1 else f"rows of their own: {counts}"
        cause = f"the plan is for a batch of {planned} rows, of which all ranks give the same or each its own"
        raise InputsError(f"a batch of {said}", cause, f"give at most {planned} rows in all")
    if len({one.digests for one in shown}) == 1:
        return given, BatchSizes(rows, tokens)
    counts = [one.rows for one in by_replica(shown)]
    whole = {v.name: joined(v, given[v.name], counts, data, planned) for v in spec.lowered.batch}
    return whole, BatchSizes(total, tokens)


def planned_rows(spec: ProgramSpec) -> int:
    """Rows of the planned batch."""
    return planned_sizes(spec.lowered).rows


def has_rows(spec: ProgramSpec, value: TypedValue) -> bool:
    return value.type.shape[:1] == (planned_rows(spec),)


def fitting(spec: ProgramSpec, batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """This rank's batch by name, on its device; InputsError where it isn't one of the plan's inputs."""
    given = named([value.name for value in spec.lowered.batch], batch)
    planned, tokens = planned_sizes(spec.lowered).tokens, tokens_of(spec, given)
    if tokens > planned:
        cause = f"the plan's memory is for rows of {planned}"
        raise InputsError(f"rows of {tokens} tokens", cause, "cut them, or plan again with longer ones")
    for value in spec.lowered.batch:
        tensor, rows = given[value.name], has_rows(spec, value)
        shape, wanted = tuple(tensor.shape), list(value.type.shape)
        if has_tokens(spec, value):
            wanted[1] = tokens
        told = ", ".join(["rows", *map(str, wanted[1:])] if rows else map(str, wanted))
        if len(shape) != len(wanted) or list(shape[rows:]) != wanted[rows:] or 0 in shape:
            cause = f"the plan's has shape ({told})"
            raise InputsError(f"{value.name} of shape {shape}", cause, "give one of that shape, with at least one row")
        if tensor.is_floating_point() != value.type.floating:
            raise InputsError(f"{value.name} of {tensor.dtype}", f"the plan has {value.type.dtype}", "convert it first")
    if len({given[v.name].shape[0] for v in spec.lowered.batch if has_rows(spec, v)}) > 1:
        counts = {v.name: given[v.name].shape[0] for v in spec.lowered.batch if has_rows(spec, v)}
        raise InputsError(
            f"a batch of {counts} rows", "its tensors have different numbers of rows", "give as many each"
        )
    return {v.name: given[v.name].to(device, spec.activation_dtype(v.type)) for v in spec.lowered.batch}


def rows_of(spec: ProgramSpec, given: Mapping[str, Tensor]) -> int:
    return next((given[v.name].shape[0] for v in spec.lowered.batch if has_rows(spec, v)), planned_rows(spec))


def has_tokens(spec: ProgramSpec, value: TypedValue) -> bool:
    planned = planned_sizes(spec.lowered).tokens
    return bool(planned) and value.type.shape[1:2] == (planned,)


def tokens_of(spec: ProgramSpec, given: Mapping[str, Tensor]) -> int:
    """Tokens in a row: of the first input; as planned where it has another number of dims."""
    first, planned = spec.lowered.batch[0], planned_sizes(spec.lowered).tokens
    shape = given[first.name].shape
    return shape[1] if planned and len(shape) == len(first.type.shape) else planned


def by_replica(shown: Sequence[Shown]) -> list[Shown]:
    """The first rank's of each replica, in the order of the data axis."""
    firsts: dict[int, Shown] = {}
    for one in shown:
        firsts.setdefault(one.replica, one)
    return [firsts[replica] for replica in sorted(firsts)]


def agreed(shown: Sequence[Shown]) -> int:
    """Rows of the whole batch. InputsError where ranks of one replica differ."""
    firsts = by_replica(shown)
    odd = [r for r, one in enumerate(shown) if one != firsts[one.replica] or one.fixed != shown[0].fixed]
    if len({one.tokens for one in shown}) > 1:
        lengths = ", ".join(map(str, sorted({one.tokens for one in shown})))
        raise InputsError(f"rows of {lengths} tokens", "they are of one length on all ranks", "pad them alike")
    if odd:
        first = next((r for r, one in enumerate(shown) if r not in odd and one.replica == shown[odd[0]].replica), 0)
        raise InputsError(
            f"the batch of rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))}",
            f"it isn't that of rank {first}, which computes with the same rows, or the same tensors without rows",
            "give the same batch to all ranks, or the same rows to all ranks of one place on the data axis",
        )
    if len({one.digests for one in shown}) == 1:
        return firsts[0].rows
    return sum(one.rows for one in firsts)


def joined(value: TypedValue, own: Tensor, counts: Sequence[int], data: MeshAxis, planned: int) -> Tensor:
    """The rows of all replicas, in the order of the data axis."""
    if value.type.shape[:1] != (planned,):
        return own
    room = own.new_zeros(max(counts), *own.shape[1:])
    room[: own.shape[0]] = own
    parts = gathered(room, data)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def gathered(x: Tensor, axis: MeshAxis) -> list[Tensor]:
    """The members' tensors, all of one shape, in their order."""
    if axis.group is None:
        return [x]
    found = [torch.empty_like(x) for _ in range(axis.size)]
    dist.all_gather(found, x.contiguous(), group=axis.group)
    return [found[place] for place in axis.places] if axis.places else found
