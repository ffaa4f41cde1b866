"""Collectives beside compute: what stays in sight of them, and what they cost the compute."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.arithmetic import Number, maximum, minimum


@dataclass(frozen=True)
class Overlap:
    """A collective that runs while something else is computed, in seconds.

    compute_s  the compute, slowed while the collective runs beside it
    exposed_s  of the collective, after the compute has ended
    """

    compute_s: Number
    exposed_s: Number

    @property
    def seconds(self) -> Number:
        """Both together."""
        return self.compute_s + self.exposed_s


def overlapped(compute_s: Number, comm_s: Number, slowdown: Number) -> Overlap:
    """A collective of ``comm_s`` seconds beside compute that would take ``compute_s`` seconds alone.

    slowdown  share by which compute slows while a collective takes some of the multiprocessors and of the memory's
              bandwidth (``Device.overlap_slowdown``); 0: they don't meet

    While both run, a second does 1/(1+slowdown) seconds' worth of compute; the collective keeps its pace. If it
    outlasts the slowed compute, what is left of it is exposed.
    """
    together_s = minimum(compute_s * (1 + slowdown), comm_s)
    lost_s = together_s * slowdown / (1 + slowdown)
    return Overlap(compute_s + lost_s, maximum(comm_s - compute_s * (1 + slowdown), 0.0))


def hidden_seconds(compute_s: Number, comm_s: Number, slowdown: Number) -> Number:
    """Seconds that running the collective beside the compute saves over running one after the other, from 0 to the
    shorter of the two. Arguments as for ``overlapped``."""
    return minimum(compute_s * (1 + slowdown), comm_s) / (1 + slowdown)
