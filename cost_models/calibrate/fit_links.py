"""The links under which the collectives' predictions meet the measurements, with figures of its own for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cost_models.calibrate.cases import Collective, Sample
from cost_models.calibrate.fit import fit
from cost_models.collective import COLLECTIVES, send_seconds
from cost_models.hardware import Link, LinkPath

Links = Mapping[str, Link]
"""By the level's name, "node" and "nic"; bandwidths are a device's own share while all devices use theirs."""

Key = tuple[str, str, int]
"""(level, figure, members): members for the bandwidth of a group of so many, else 0."""

DEFAULT = "all-to-all"
"""The kind whose figures stand for what is none of ``KINDS``, such as an exchange of uneven parts."""


def predict(case: Collective, links: Links) -> float:
    """Seconds of a collective by ``cost_models.collective``."""
    path: LinkPath = tuple((members, links[level]) for level, members in case.axis.levels)
    if case.kind == "send":
        return float(send_seconds(case.bytes, path[0][1]))
    return float(COLLECTIVES[case.kind](case.bytes, path))


def fit_links(samples: Sequence[Sample[Collective]]) -> dict[str, Link]:
    """Each level's link, from the samples over all axes: those inside a node, between nodes, and over both."""
    kinds = dict.fromkeys(sample.case.kind for sample in samples)
    by_kind = {kind: _fit_kind([sample for sample in samples if sample.case.kind == kind]) for kind in kinds}
    levels = dict.fromkeys(level for links in by_kind.values() for level in links)
    return {level: _joined({kind: link[level] for kind, link in by_kind.items() if level in link}) for level in levels}


def with_start_delay(links: Links, start_delay_s: float, send_s: float) -> dict[str, Link]:
    """The links on which every collective starts ``start_delay_s`` later and every send ``send_s``, as
    ``measure_start_delay`` found it: they were timed one after another, and a step has computing between them."""
    return {level: _later(link, start_delay_s, send_s) for level, link in links.items()}


def _later(link: Link, start_delay_s: float, send_s: float) -> Link:
    kinds = tuple((kind, _later(own, send_s if kind == "send" else start_delay_s, send_s)) for kind, own in link.kinds)
    return replace(link, startup_s=link.startup_s + start_delay_s, turn_s=start_delay_s, kinds=kinds)


def _joined(kinds: Mapping[str, Link]) -> Link:
    """One link with each kind's figures, beside those of the default."""
    default = kinds.get(DEFAULT, next(iter(kinds.values())))
    return Link(
        default.latency_s, default.bandwidth_bytes_per_s, default.startup_s,
        group_bandwidths=default.group_bandwidths, kinds=tuple(kinds.items()),
    )  # fmt: skip


def _fit_kind(samples: Sequence[Sample[Collective]]) -> dict[str, Link]:
    """The links by one kind of collective alone.

    By time: what a step waits for is large. And a link may let a burst through at once, as a shaper's or a switch's
    buffer does: a message of a few such bursts then goes faster than the link carries what follows.
    """
    members: dict[str, set[int]] = {}
    for sample in samples:
        for level, count in sample.case.axis.levels:
            members.setdefault(level, set()).add(count)
    figures = fit(
        _guess(samples, members),
        lambda trial: [predict(sample.case, _links(trial, members)) for sample in samples],
        [sample.seconds for sample in samples],
        by_time=True,
    )
    return _links(figures, members)


def _guess(samples: Sequence[Sample[Collective]], members: Mapping[str, set[int]]) -> dict[Key, float]:
    """From the level's own axes: half of the quickest for the startup and a step, the fastest bytes for the rate."""
    guess: dict[Key, float] = {}
    for level, counts in members.items():
        own = [sample for sample in samples if level in dict(sample.case.axis.levels)]
        quickest_s = min(sample.seconds for sample in own)
        guess[level, "startup", 0] = guess[level, "latency", 0] = quickest_s / 2
        for count in counts:
            guess[level, "bandwidth", count] = max(sample.case.bytes / sample.seconds for sample in own)
    return guess


def _links(figures: Mapping[Key, float], members: Mapping[str, set[int]]) -> dict[str, Link]:
    """Links of a trial's figures; bandwidth is told by a group's members where there are groups of several sizes."""
    links = {}
    for level, counts in members.items():
        bandwidths = tuple((count, figures[level, "bandwidth", count]) for count in sorted(counts))
        links[level] = Link(
            latency_s=figures[level, "latency", 0],
            bandwidth_bytes_per_s=bandwidths[-1][1],
            startup_s=figures[level, "startup", 0],
            group_bandwidths=bandwidths if len(bandwidths) > 1 else (),
        )
    return links
