"""Several kinds of device in one cluster: the one device that holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cost_models.errors import ProfileError
from cost_models.hardware.device import Device
from cost_models.hardware.host import slowest_host


def slowest_of(devices: Sequence[Device]) -> Device:
    """A device on which an evenly split step takes as long, and finds as little memory, as on the worst of ``devices``.

    A planner that gives every device an equal share is right to plan for this one: all wait for the slowest, and the
    plan must fit on the smallest. Rates are compared as they are reached, peak times efficiency, since a part with
    the higher peak may reach a smaller share of it. What describes the shape of a kernel (tiles, multiprocessors)
    can't be mixed: it is that of the part with the lowest rate of matmuls. A dtype that one kind lacks, all lack.
    The name joins the names, "h100-sxm + a100-sxm-80gb".

    A ``ProfileError`` where no dtype is common to all.
    """
    kinds = tuple(dict.fromkeys(devices))
    if len(kinds) == 1:
        return kinds[0]
    name = " + ".join(device.name for device in kinds)
    peaks = _peaks(name, kinds)
    slow = min(kinds, key=lambda device: _pace(device, peaks))
    usable = min(device.usable_bytes for device in kinds)
    memory = min(device.memory_bytes for device in kinds)
    bandwidth = min(device.memory_bandwidth_bytes_per_s for device in kinds)
    streamed = min(_streamed(device) for device in kinds)

    def share(efficiency: Callable[[Device], float]) -> float:
        """Of the common peaks, what the worst of the kinds reaches."""
        return min(rate / peaks[dtype] for device in kinds for dtype, rate in _rates(device, peaks, efficiency))

    return replace(
        slow,
        name=name,
        memory_bytes=memory,
        reserved_bytes=memory - usable,
        peaks=tuple(peaks.items()),
        matmul_efficiency=share(_matmul) / slow.matmul_sustained,
        matmul_shares=_shares(kinds, peaks),
        matmul_ramp_k=max(device.matmul_ramp_k for device in kinds),
        attention_efficiency=share(lambda device: device.attention_efficiency),
        attention_backward_efficiency=share(lambda device: device.attention_backward_efficiency),
        scores_efficiency=_scores(kinds, streamed),
        attention_ramp_k=max(device.attention_ramp_k for device in kinds),
        attention_ramp_head_dim=max(device.attention_ramp_head_dim for device in kinds),
        memory_bandwidth_bytes_per_s=bandwidth,
        memory_efficiency=streamed / bandwidth,
        update_efficiency=min(_streamed(device) * device.update_efficiency for device in kinds) / streamed,
        cache_bytes=min(device.cache_bytes for device in kinds),
        cache_bandwidth_bytes_per_s=min(device.cache_bandwidth_bytes_per_s for device in kinds),
        kernel_launch_s=max(device.kernel_launch_s for device in kinds),
        dispatch_s=max(device.dispatch_s for device in kinds),
        overlap_slowdown=max(device.overlap_slowdown for device in kinds),
        straggler_per_doubling=max(device.straggler_per_doubling for device in kinds),
        compiles=all(device.compiles for device in kinds),
        blocking=any(device.blocking for device in kinds),
        composes=any(device.composes for device in kinds),
        sharers=min(device.sharers for device in kinds),
        alone=min(device.alone for device in kinds),
        host=slowest_host([device.host for device in kinds]),
    )


def _peaks(name: str, kinds: Sequence[Device]) -> dict[str, float]:
    """The lowest peak of each dtype that every kind has."""
    common = [dtype for dtype, _ in kinds[0].peaks if all(dtype in device.peak_flops_per_s for device in kinds)]
    if not common:
        raise ProfileError(name, "have no dtype in common", "Plan for the kinds apart")
    return {dtype: min(device.peak_flops_per_s[dtype] for device in kinds) for dtype in common}


def _streamed(device: Device) -> float:
    """Bytes a second that a streaming kernel reaches."""
    return device.memory_bandwidth_bytes_per_s * device.memory_efficiency


def _matmul(device: Device) -> float:
    return device.matmul_efficiency * device.matmul_sustained


def _pace(device: Device, peaks: dict[str, float]) -> tuple[float, float, str]:
    """What orders devices by the rate of their matmuls: the dtype that is slowest, all of them, the name."""
    shares = [rate / peaks[dtype] for dtype, rate in _rates(device, peaks, _matmul)]
    return min(shares), sum(shares), device.name


def _shares(kinds: Sequence[Device], peaks: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """The least share of its own that a kind reaches of each dtype."""
    held = [dict(device.matmul_shares) for device in kinds]
    return tuple(
        (dtype, min(shares.get(dtype, 1.0) for shares in held))
        for dtype in peaks
        if any(dtype in shares for shares in held)
    )


def _rates(
    device: Device, peaks: dict[str, float], efficiency: Callable[[Device], float]
) -> Iterator[tuple[str, float]]:
    """FLOP/s that a device reaches, by dtype."""
    return ((dtype, device.peak_flops_per_s[dtype] * efficiency(device)) for dtype in peaks)


def _scores(kinds: Sequence[Device], streamed: float) -> float | None:
    """Of the slowest streaming rate what kernels over attention's scores reach on the worst; None if one lacks it."""
    reached = [
        None if device.scores_efficiency is None else _streamed(device) * device.scores_efficiency for device in kinds
    ]
    known = [rate for rate in reached if rate is not None]
    return min(known) / streamed if len(known) == len(kinds) else None
