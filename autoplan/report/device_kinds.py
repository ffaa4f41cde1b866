"""Clusters of several kinds of device: what each pipeline rank of a plan is on, and how much may be filled there."""

from autoplan.cost import Device
from autoplan.emit.source import size_text
from autoplan.ir.record import PlanRecord
from autoplan.search.space.heterogeneous import headroom_bytes, kinds_of, rank_devices


def devices_of(record: PlanRecord) -> tuple[Device, ...]:
    """What each rank is priced on; none where all have the pace of one."""
    mesh = record.chosen.mesh
    ranks, schedule = mesh.size("pp"), record.chosen.parallelism.pipeline_schedule or ""
    return rank_devices(record.cluster.topology(), ranks, mesh.devices // ranks, schedule)


def stage_kinds(record: PlanRecord) -> list[str]:
    """Their names."""
    return [device.name for device in devices_of(record)]


def memory_limits_of(record: PlanRecord) -> list[int]:
    """Bytes that may be filled of a device of each rank."""
    topology, devices = record.cluster.topology(), devices_of(record)
    least, ranks = record.cluster.usable_bytes, len(record.chosen.predicted.peak_bytes)
    return [least + headroom_bytes(topology, device) for device in devices] or [least] * ranks


def memory_limit_text(record: PlanRecord) -> str:
    """``76.1 GiB``, or of several kinds ``76.1 GiB on h100-sxm, 36.9 GiB on a100-sxm-40gb``."""
    names, memory_limits = stage_kinds(record), [size_text(memory_limit) for memory_limit in memory_limits_of(record)]
    if len(set(memory_limits)) == 1:
        return memory_limits[0]
    pairs = zip(memory_limits, names, strict=True)
    return ", ".join(dict.fromkeys(f"{memory_limit} on {name}" for memory_limit, name in pairs))


def unequal(record: PlanRecord) -> list[str]:
    """``Kinds: … of 14 segments h100-sxm holds 10, a100-sxm-80gb holds 4``; or that the slowest sets the pace."""
    if not kinds_of(record.cluster.topology()):
        return []
    names = stage_kinds(record)
    if not names:
        return ["Kinds: every device has an equal share, so the slowest sets the pace, the smallest the memory limit."]
    counts = [stage.last - stage.first for stage in record.chosen.stages]
    held = [f"{name} {told([n for n, own in zip(counts, names, strict=True) if own == name])}"
            for name in dict.fromkeys(names)]  # fmt: skip
    return [f"Kinds: stages are as large as their devices are quick; of {sum(counts)} segments {', '.join(held)}."]


def told(counts: list[int]) -> str:
    """``holds 12``, or of several stages ``holds 12 + 11``."""
    return f"holds {' + '.join(map(str, counts))}"
