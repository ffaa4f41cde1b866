"""What a kernel meets that a benchmark runs again and again, and one in a training doesn't."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.figures import Figures

REPEATED = ("repeated",)  # the table that only devices have of which such benchmarks are published


@dataclass(frozen=True)
class Repeated:
    """cache_bytes        operands of so many bytes are still in the cache when they are read again
    cache_bytes_per_s  the rate at which a product gets them from there
    throttle           share by which a product is slower that is long enough to meet the power limit
    throttle_s         time at which half of that is reached
    """

    cache_bytes: float
    cache_bytes_per_s: float
    throttle: float
    throttle_s: float


def read_repeated(figures: Figures) -> Repeated | None:
    """None where the profile has none."""
    if not figures.has(*REPEATED):
        return None
    return Repeated(
        figures.positive(*REPEATED, "cache", measures="bytes"),
        figures.positive(*REPEATED, "cache_bandwidth", measures="bytes/s"),
        figures.number(*REPEATED, "throttle", measures="count"),
        figures.positive(*REPEATED, "throttle_time", measures="seconds"),
    )
