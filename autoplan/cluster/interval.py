"""The interval about a predicted step: how far a measured one may be from it.

Its two shares are the ``accuracy`` of the device's profile: published steps over their predictions, as
``python -m tests.bench.published_steps`` found them (cost_models/profiles).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cluster.spec import ClusterSpec
from cost_models.hardware import UNVALIDATED


@dataclass(frozen=True)
class Interval:
    """Seconds between which a step is expected.

    is_validated  published steps were met on every kind of device; else the interval is the widest of those that were
    """

    low_s: float
    high_s: float
    is_validated: bool

    def holds(self, seconds: float) -> bool:
        return self.low_s <= seconds <= self.high_s


def interval_of(cluster: ClusterSpec, step_s: float) -> Interval:
    """Of a prediction: that of the device's profile, or of several kinds the widest."""
    shares = [known.device.accuracy for known in cluster.known.devices]
    told = [share or UNVALIDATED for share in shares]
    low, high = min(low for low, _ in told), max(high for _, high in told)
    return Interval(low * step_s, high * step_s, None not in shares)
