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


def whole_batch(
    spec: ProgramSpec, batch: Batch, axes: Mapping[str, MeshAxis], device: torch.device
) -> tuple[dict[str, Tensor], int]:
    """The whole batch by name on every rank, and its number of rows.

    batch  the whole of it, 1 to as many rows as planned, or this rank's rows
    InputsError, on every rank, where names, shapes or dtypes aren't the plan's, where there are too many rows, and
    where the ranks of one replica give different ones.
    """
    given = together(lambda: fitting(spec, batch, device))
    rows, data = rows_of(spec, given), axes.get(DATA, MeshAxis(DATA, 1, 0))
    with_rows, without = [[v for v in spec.lowered.batch if has_rows(spec, v) == kind] for kind in (True, False)]
    of = Fingerprint(device).of
    digests, fixed = (tuple(int(of([given[v.name]])) for v in values) for values in (with_rows, without))
    shown = from_all(Shown(data.rank, rows, digests, fixed))
    total = agreed(shown)
    planned = planned_rows(spec)
    if total > planned:
        counts = [one.rows for one in by_replica(shown)]
        said = f"{total} rows" if len(set(map(lambda s: s.digests, shown))) == 1 else f"rows of their own: {counts}"
        cause = f"the plan is for a batch of {planned} rows, of which all ranks give the same or each its own"
        raise InputsError(f"a batch of {said}", cause, f"give at most {planned} rows in all")
    if len({one.digests for one in shown}) == 1:
        return given, rows
    counts = [one.rows for one in by_replica(shown)]
    return {v.name: joined(v, given[v.name], counts, data, planned) for v in spec.lowered.batch}, total


def planned_rows(spec: ProgramSpec) -> int:
    """Rows of the planned batch: the first size that most inputs have."""
    sizes = [v.type.shape[0] for v in spec.lowered.batch if v.type.shape]
    return max(dict.fromkeys(sizes), key=sizes.count) if sizes else 1


def has_rows(spec: ProgramSpec, value: TypedValue) -> bool:
    return value.type.shape[:1] == (planned_rows(spec),)


def fitting(spec: ProgramSpec, batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """This rank's batch by name, on its device; InputsError where it isn't one of the plan's inputs."""
    given = named([value.name for value in spec.lowered.batch], batch)
    for value in spec.lowered.batch:
        tensor, rows = given[value.name], has_rows(spec, value)
        shape = tuple(tensor.shape)
        wanted = ("rows", *value.type.shape[1:]) if rows else value.type.shape
        if len(shape) != len(wanted) or shape[rows:] != tuple(wanted[rows:]) or (rows and not shape[0]):
            cause = f"the plan's has shape ({', '.join(map(str, wanted))})"
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
