"""A fabric's figures from measured collectives: those under which the cost functions come nearest.

Nothing knows of a row or a paper: a fabric has one set of figures, or one for a kind of collective.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from cost_models.collective import COLLECTIVES
from cost_models.hardware import Link, LinkPath
from tests.bench.closed_form.collectives import Place, Sample

LOOSE = 0.1
"""Errors beyond this share count in proportion, not squared: a few odd rows mustn't bend the rest."""
STARTS = 12
"""Searches from different figures: where a protocol serves no sample, its figures lead nowhere."""
WITHIN = 8.0
"""The factor by which a figure may leave the one that it starts from: one that no sample depends on stays near."""


@dataclass(frozen=True)
class Group:
    """Samples of one kind on one path, so that they are priced at once."""

    kind: str
    path: LinkPath
    bytes: np.ndarray
    measured_s: np.ndarray


def fit_link(fabric: str, samples: Sequence[Sample], links: Mapping[str, Link], within: float = WITHIN) -> Link:
    """The link of ``fabric`` whose figures fit the samples best, starting from the one in ``links``.

    What it has is fitted, nothing is added: its startup, latency, bandwidths, protocols, tree and switch. Figures by
    kind are kept as they are: fit a kind as ``link.of(kind)`` on samples of that kind. Least squares of the logarithm
    of predicted over measured; from several starts, since the choice of protocols has more than one local optimum.
    """
    start = links[fabric]

    def residuals(values: np.ndarray) -> np.ndarray:
        trial = with_figures(start, np.exp(values))
        return np.concatenate(
            [np.log(COLLECTIVES[g.kind](g.bytes, g.path) / g.measured_s) for g in groups(fabric, samples, links, trial)]
        )

    first = np.log(figures(start))
    room, random = math.log(within), np.random.default_rng(0)
    shifts = [np.zeros_like(first), *random.uniform(-room / 2, room / 2, (STARTS - 1, first.size))]
    bounds = (first - room, first + room)
    fits = [least_squares(residuals, first + by, bounds=bounds, loss="soft_l1", f_scale=LOOSE) for by in shifts]
    return with_figures(start, np.exp(min(fits, key=lambda fit: fit.cost).x))


def groups(fabric: str, samples: Sequence[Sample], links: Mapping[str, Link], trial: Link) -> Iterator[Group]:
    """The samples by kind and path, with ``trial`` for the fabric's link."""
    tried = {**links, fabric: trial}
    alike: dict[tuple[str, int, Place], list[Sample]] = {}
    for sample in samples:
        alike.setdefault((sample.kind, sample.devices, sample.place), []).append(sample)
    for (kind, devices, place), held in alike.items():
        bytes = np.array([sample.bytes for sample in held], dtype=float)
        measured_s = np.array([sample.measured_s for sample in held])
        yield Group(kind, place.path(devices, tried), bytes, measured_s)


def figures(link: Link) -> np.ndarray:
    """A link's figures as a vector, all positive."""
    bandwidths = [bandwidth for _, bandwidth in link.group_bandwidths] or [link.bandwidth_bytes_per_s]
    protocols = [value for each in link.protocols for value in (each.latency_s, each.share)]
    tree = [] if link.tree_latency_s is None else [link.tree_latency_s]
    switch = [] if link.switch is None else [link.switch.startup_s, link.switch.bytes_per_s]
    return np.array([link.startup_s, link.latency_s, *bandwidths, *protocols, *tree, *switch], dtype=float)


def with_figures(link: Link, values: np.ndarray) -> Link:
    """The link with the figures of such a vector. With bandwidths by members, the general one is the last of them."""
    given = iter(values.tolist())
    startup_s, latency_s = next(given), next(given)
    by_members = tuple((members, next(given)) for members, _ in link.group_bandwidths)
    bandwidth = by_members[-1][1] if by_members else next(given)
    protocols = tuple(
        dataclasses.replace(each, latency_s=next(given), share=min(1.0, next(given))) for each in link.protocols
    )
    tree_latency_s = None if link.tree_latency_s is None else next(given)
    switch = link.switch and dataclasses.replace(link.switch, startup_s=next(given), bytes_per_s=next(given))
    return dataclasses.replace(
        link, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, startup_s=startup_s, switch=switch,
        protocols=protocols, tree_latency_s=tree_latency_s, group_bandwidths=by_members,
    )  # fmt: skip
