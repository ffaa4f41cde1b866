"""The device under which the operators' predictions meet the measurements.

In steps, each on what those before have found: the framework's floor, memory-bound operators, matmuls, attention. On an
accelerator long operators count for more than short ones: its steps are made of long ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cost_models.calibrate.cases import (
    Attention,
    Dispatch,
    Matmul,
    Operator,
    Sample,
    Stream,
    Update,
    by_family,
)
from cost_models.calibrate.fit import fit, misfit
from cost_models.hardware import Device

_CACHE_BYTES = 4e6  # to start from

Kind = TypeVar("Kind", bound=Operator)

TILES = {
    False: (((8, 8, 1.0),), ((16, 16, 1.0),), ((32, 32, 1.0),), ((64, 64, 1.0),)),
    True: (((256, 128, 1.0), (128, 128, 0.9), (128, 64, 0.75), (64, 64, 0.6)), ((128, 128, 1.0), (64, 64, 0.8))),
}
"""Candidates for the tiles that a library cuts a product into, by whether the device is an accelerator: a processor's
registers hold one small tile. Of accelerators the shares are a start for the fit."""


def blank_device(name: str, memory_bytes: int, reserved_bytes: int, multiprocessors: int, accelerated: bool) -> Device:
    """A device of which nothing has been measured yet; rates of 1 stand for what the fit sets."""
    return Device(
        name=name, memory_bytes=memory_bytes, reserved_bytes=reserved_bytes, peaks=(), matmul_efficiency=1.0,
        matmul_tiles=TILES[accelerated][0], matmul_ramp_k=16.0, multiprocessors=multiprocessors,
        attention_efficiency=0.5, attention_backward_efficiency=0.5, attention_ramp_k=16.0,
        attention_ramp_head_dim=8.0, memory_bandwidth_bytes_per_s=1.0, memory_efficiency=1.0, kernel_launch_s=1e-9,
        dispatch_s=1e-9, compiles=accelerated, blocking=not accelerated, composes=not accelerated,
    )  # fmt: skip


def fit_device(blank: Device, samples: Sequence[Sample[Operator]]) -> Device:
    """The device of ``blank`` with its rates and floors; a dtype that was not measured gets no peak."""
    device = _with_floor(blank, _of(samples, Dispatch))
    device = _with_memory(device, _of(samples, Stream))
    device = _fitted(device, _of(samples, Update), {"update_efficiency": 0.5})
    device = _with_matmul(device, _of(samples, Matmul))
    return _with_attention(device, _of(samples, Attention))


def _of(samples: Sequence[Sample[Operator]], kind: type[Kind]) -> list[Sample[Kind]]:
    return [Sample(sample.case, sample.seconds) for sample in samples if isinstance(sample.case, kind)]


def _fitted(device: Device, samples: Sequence[Sample[Kind]], guess: dict[str, float]) -> Device:
    """``device`` with the fields of ``guess`` fitted."""
    if not samples:
        return device
    found = fit(
        guess,
        lambda trial: [sample.case.predict(_with(device, trial)) for sample in samples],
        [sample.seconds for sample in samples],
        by_time=device.compiles,
    )
    return _with(device, found)


def _with(device: Device, figures: Mapping[str, Any]) -> Device:
    return replace(device, **figures)


def _with_floor(device: Device, samples: Sequence[Sample[Dispatch]]) -> Device:
    return replace(device, dispatch_s=samples[0].seconds) if samples else device


def _with_memory(device: Device, samples: Sequence[Sample[Stream]]) -> Device:
    """Launch, and the rates of memory and cache. The memory's bandwidth is the highest that any operator reached on
    its largest size, its efficiency what the fit, over all operators, leaves of it."""
    largest = [members[-1] for members in by_family(samples).values()]
    highest = max(sample.case.work / sample.seconds for sample in largest)
    fastest = max(sample.case.work / sample.seconds for sample in samples)
    guess = {
        "memory_bandwidth_bytes_per_s": highest, "cache_bytes": _CACHE_BYTES, "cache_bandwidth_bytes_per_s": fastest,
        "kernel_launch_s": device.dispatch_s / 2,
    }  # fmt: skip
    fitted = _fitted(device, samples, guess)
    bandwidth = fitted.memory_bandwidth_bytes_per_s
    launch_s = min(fitted.kernel_launch_s, device.dispatch_s)
    cached = fitted.cache_bytes if fitted.cache_bandwidth_bytes_per_s > bandwidth else 0.0
    highest = max(highest, bandwidth)
    return replace(
        fitted, memory_bandwidth_bytes_per_s=highest, memory_efficiency=bandwidth / highest, kernel_launch_s=launch_s,
        cache_bytes=cached, cache_bandwidth_bytes_per_s=fitted.cache_bandwidth_bytes_per_s if cached else 0.0,
    )  # fmt: skip


def _with_matmul(device: Device, samples: Sequence[Sample[Matmul]]) -> Device:
    """The peak of each dtype, the tiles, and what filling a pipeline costs; the best of the candidate tiles."""
    fits = [_tiled(device, samples, tiles) for tiles in TILES[device.compiles]]
    measured = [sample.seconds for sample in samples]
    best = min(fits, key=lambda trial: misfit([sample.case.predict(trial) for sample in samples], measured))
    return _with_best_as_peak(best, samples)


def _tiled(device: Device, samples: Sequence[Sample[Matmul]], tiles: tuple[tuple[int, int, float], ...]) -> Device:
    dtypes = list(dict.fromkeys(sample.case.dtype for sample in samples))
    guess = {f"peak {dtype}": _highest(samples, dtype) for dtype in dtypes} | {"ramp_k": device.matmul_ramp_k}
    guess |= {f"share {index}": share for index, (_, _, share) in enumerate(tiles) if index}

    def trial(figures: dict[str, float]) -> Device:
        shares = [min(1.0, figures.get(f"share {index}", 1.0)) for index in range(len(tiles))]
        return replace(
            device,
            peaks=tuple((dtype, figures[f"peak {dtype}"]) for dtype in dtypes),
            matmul_ramp_k=figures["ramp_k"],
            matmul_tiles=tuple((m, n, share) for (m, n, _), share in zip(tiles, shares, strict=True)),
        )

    found = fit(
        guess,
        lambda figures: [sample.case.predict(trial(dict(figures))) for sample in samples],
        [sample.seconds for sample in samples],
        by_time=device.compiles,
    )
    return trial(found)


def _with_best_as_peak(device: Device, samples: Sequence[Sample[Matmul]]) -> Device:
    """The same rates, told as the peak that the best of the measured products reached, or the fit where it is higher,
    the best dtype's efficiency, and the other dtypes' shares of that."""
    peaks = {dtype: max(rate, _highest(samples, dtype)) for dtype, rate in device.peaks}
    reached = {dtype: rate / peaks[dtype] for dtype, rate in device.peaks}
    efficiency = max(reached.values(), default=1.0)
    return replace(
        device,
        peaks=tuple(peaks.items()),
        matmul_efficiency=efficiency,
        matmul_shares=tuple((dtype, share / efficiency) for dtype, share in reached.items() if share < efficiency),
    )


def _highest(samples: Sequence[Sample[Matmul]], dtype: str) -> float:
    return max(sample.case.work / sample.seconds for sample in samples if sample.case.dtype == dtype)


def _with_attention(device: Device, samples: Sequence[Sample[Attention]]) -> Device:
    guess = {
        "attention_efficiency": device.attention_efficiency,
        "attention_backward_efficiency": device.attention_backward_efficiency,
        "attention_ramp_k": device.attention_ramp_k,
        "attention_ramp_head_dim": device.attention_ramp_head_dim,
    }
    return _fitted(device, samples, guess)
