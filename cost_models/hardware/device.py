"""One device's figures, and how a profile names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.errors import ProfileError
from cost_models.figures import Figures
from cost_models.hardware.accuracy import read_accuracy
from cost_models.hardware.host import Host, read_host
from cost_models.hardware.repeated import Repeated, read_repeated

SHARED = ("shared",)                 # the table that only devices have which share processors
SHARES = ("shares",)                 # the table that only devices have whose dtypes reach different shares of the peak
CACHE = ("cache",)                   # the table that only devices have whose cache was measured
UPDATE = ("memory", "update")        # the figure that only devices have whose optimizer's update was measured
SCORES = ("attention", "scores")     # the figure that only devices have on which it was measured
BLOCKING = ("overhead", "blocking")  # the figure that only devices without streams have
COMPOSES = ("overhead", "composes")  # the figure that only devices have that ATen has fewer kernels for


@dataclass(frozen=True)
class Device:
    """One accelerator, or one process of a CPU machine. Figures come from a profile, each with its source.

    memory_bytes                  what the runtime reports as the device's memory
    reserved_bytes                of that, what no tensor can use: context, communication buffers, fragmentation
    peaks                         dense FLOP/s by dtype name, (("bfloat16", 312e12), ...); see ``peak_flops_per_s``
    matmul_efficiency             share of the peak that the best shapes reach, where whole waves of tiles run
    matmul_tiles                  output tiles to choose from, ((rows, columns, share of matmul_efficiency), ...)
    matmul_sustained              share of the rate of single products that holds through training: clocks fall under a
                                  power cap that a benchmark of one product hardly meets
    matmul_ramp_k                 inner extent at which filling the pipeline costs as much as the work itself
    multiprocessors               tiles that run at once
    attention_efficiency          share of the peak that a fused attention forward reaches on long sequences
    attention_backward_efficiency the same for its backward
    attention_ramp_k              keys seen by a query on average at which a fused attention reaches half of that
    attention_ramp_head_dim       the same for the extent of a head
    memory_bandwidth_bytes_per_s  the data sheet's
    memory_efficiency             share of it that a streaming kernel reaches
    cache_bytes                   of the bytes that a kernel moves, so many go at another rate: by a cache, or to memory
                                  that the process has already, which large results aren't given; 0: unknown
    cache_bandwidth_bytes_per_s   that a streaming kernel reaches there
    update_efficiency             share of that rate which the optimizer's update reaches, whose kernels may read and
                                  write again what they have; above 1 where it gains by working in place
    kernel_launch_s               least time of one kernel, on the device
    dispatch_s                    least time of one operator in eager mode, in the framework
    matmul_shares                 of a dtype that reaches less of its peak than the others of theirs, by name
    overlap_slowdown              share by which compute slows while a collective runs beside it, for the
                                  multiprocessors and the memory bandwidth that it takes
    straggler_per_doubling        share by which a step grows with each doubling of the nodes: the slowest sets the pace
    compiles                      whether exported programs are compiled on it, where the training asks for it
    composes                      whether norms that ATen has fused kernels for elsewhere run as several there
    scores_efficiency             share of a streaming kernel's rate that softmax and dropout over attention's scores
                                  reach, where they go through memory; None: not known
    blocking                      whether a program waits for every collective of its parameters and gradients, as it
                                  does where there are no streams; nothing hides then
    sharers                       devices next to each other that share processors, as processes of one machine with
                                  fewer cores do; the other figures are those of all of them at work
    alone                         how many times as fast one of them computes while the others wait
    host                          its share of the host's memory and the link there; None: the profile doesn't know
    accuracy                      measured over predicted step time, from and to, of published steps; None: none was met
    repeated                      what kernels meet that run again and again; None: it wasn't measured
    """

    name: str
    memory_bytes: int
    reserved_bytes: int
    peaks: tuple[tuple[str, float], ...]
    matmul_efficiency: float
    matmul_tiles: tuple[tuple[int, int, float], ...]
    matmul_ramp_k: float
    multiprocessors: int
    attention_efficiency: float
    attention_backward_efficiency: float
    attention_ramp_k: float
    attention_ramp_head_dim: float
    memory_bandwidth_bytes_per_s: float
    memory_efficiency: float
    kernel_launch_s: float
    dispatch_s: float
    matmul_sustained: float = 1.0
    matmul_shares: tuple[tuple[str, float], ...] = ()
    cache_bytes: float = 0.0
    cache_bandwidth_bytes_per_s: float = 0.0
    update_efficiency: float = 1.0
    overlap_slowdown: float = 0.0
    straggler_per_doubling: float = 0.0
    compiles: bool = True
    blocking: bool = False
    composes: bool = False
    scores_efficiency: float | None = None
    sharers: int = 1
    alone: float = 1.0
    host: Host | None = None
    accuracy: tuple[float, float] | None = None
    repeated: Repeated | None = None

    @property
    def usable_bytes(self) -> int:
        """Bytes that tensors can use."""
        return self.memory_bytes - self.reserved_bytes

    @property
    def peak_flops_per_s(self) -> Mapping[str, float]:
        """Dense peak by dtype name: "float64", "float32", "bfloat16", "float16"."""
        return dict(self.peaks)


def read_device(name: str, figures: Figures) -> Device:
    """The device of a profile; a ``ProfileError`` where a figure is missing."""
    dtypes = sorted(figures.names("peak"))
    capacity, reserved = int(figures.positive("memory", "capacity", measures="bytes")), _reserved_bytes(figures)
    rate = figures.positive("memory", "bandwidth", measures="bytes/s")
    memory_efficiency = figures.positive("memory", "efficiency", measures="count")
    return Device(
        name=name,
        memory_bytes=capacity,
        reserved_bytes=reserved,
        peaks=tuple((dtype, figures.positive("peak", dtype, measures="flops/s")) for dtype in dtypes),
        matmul_efficiency=figures.positive("matmul", "efficiency", measures="count"),
        matmul_tiles=figures.triples("matmul", "tiles"),
        matmul_ramp_k=figures.number("matmul", "ramp_k", measures="count"),
        multiprocessors=figures.whole("matmul", "multiprocessors"),
        attention_efficiency=figures.positive("attention", "efficiency", measures="count"),
        attention_backward_efficiency=figures.positive("attention", "backward_efficiency", measures="count"),
        attention_ramp_k=figures.number("attention", "ramp_k", measures="count"),
        attention_ramp_head_dim=figures.number("attention", "ramp_head_dim", measures="count"),
        memory_bandwidth_bytes_per_s=rate,
        memory_efficiency=memory_efficiency,
        matmul_sustained=figures.positive("matmul", "sustained", measures="count"),
        matmul_shares=_shares(figures),
        cache_bytes=figures.positive(*CACHE, "capacity", measures="bytes") if figures.has(*CACHE) else 0.0,
        cache_bandwidth_bytes_per_s=figures.positive(*CACHE, "bandwidth", measures="bytes/s")
        if figures.has(*CACHE)
        else 0.0,
        update_efficiency=figures.positive(*UPDATE, measures="count") if figures.has(*UPDATE) else 1.0,
        overlap_slowdown=figures.number("overhead", "overlap", measures="count"),
        straggler_per_doubling=figures.number("overhead", "straggler", measures="count"),
        kernel_launch_s=figures.number("overhead", "kernel_launch", measures="seconds"),
        dispatch_s=figures.number("overhead", "dispatch", measures="seconds"),
        compiles=bool(figures.number("overhead", "compiles", measures="count")),
        scores_efficiency=figures.positive(*SCORES, measures="count") if figures.has(*SCORES) else None,
        blocking=figures.has(*BLOCKING) and bool(figures.number(*BLOCKING, measures="count")),
        composes=figures.has(*COMPOSES) and bool(figures.number(*COMPOSES, measures="count")),
        sharers=figures.whole(*SHARED, "devices") if figures.has(*SHARED) else 1,
        alone=figures.positive(*SHARED, "alone", measures="count") if figures.has(*SHARED) else 1.0,
        host=read_host(figures, capacity - reserved, rate * memory_efficiency),
        accuracy=read_accuracy(figures),
        repeated=read_repeated(figures),
    )


def _reserved_bytes(figures: Figures) -> int:
    """Of the device's memory what no tensor can use; a ``ProfileError`` where that leaves nothing."""
    capacity, reserved = (figures.number("memory", name, measures="bytes") for name in ("capacity", "reserved"))
    if reserved >= capacity:
        cause = f"memory.reserved leaves nothing of memory.capacity, {reserved / 1e9:g} of {capacity / 1e9:g} GB"
        raise ProfileError(figures.path, cause, "Give what no tensor can use of the memory, less than all of it")
    return int(reserved)


def _shares(figures: Figures) -> tuple[tuple[str, float], ...]:
    """``[shares]``: by dtype, where the profile has it."""
    if not figures.has(*SHARES):
        return ()
    return tuple((dtype, figures.positive(*SHARES, dtype, measures="count")) for dtype in figures.names(*SHARES))
