"""A collective's time over the levels that its group spans, in seconds.

A group is a ``LinkPath`` as ``Topology.axis`` returns it: (members, link) for each level, innermost first. Bytes are a
number or a NumPy array. One rank costs 0, and so do 0 bytes.

Within one level, a ring: with n members each step costs a latency and moves one n-th of the data (Thakur, Rabenseifner
and Gropp 2005, section 4; NCCL's rings). Over several levels, the ring of each level works on what the level inside
has left to it, 1/p of the data where p devices of the group lie inside a member; the rings are cut into chunks and run
at the same time, as NCCL's do, so latencies add up and the slowest level's bytes set the pace: eight A100 nodes with
eight 200 Gb/s cards each reach the cards' 192 GB/s, not a part of it (NVIDIA GTC24 S62129). A collective is started
once, at the costliest level's ``startup_s``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cost_models.hardware import Link, LinkPath

Bytes = Any
"""A float, an int, or a NumPy array of them."""


def group_size(path: LinkPath) -> int:
    """Devices in the group."""
    return math.prod(members for members, _ in path)


def _levels(path: LinkPath) -> Iterator[tuple[int, int, Link]]:
    """(devices of the group inside a member, members, link) for each level that has more than one member."""
    inside = 1
    for members, link in path:
        if members > 1:
            yield inside, members, link
        inside *= members


def _total(bytes: Bytes, path: LinkPath, latency_s: float, transfer_s_per_byte: float) -> Bytes:
    startup_s = max((link.startup_s for _, _, link in _levels(path)), default=0.0)
    return (bytes > 0) * (startup_s + latency_s + bytes * transfer_s_per_byte)


def _ring_latency_s(path: LinkPath) -> float:
    """Latency of one pass of every level's ring: n - 1 steps."""
    return sum((members - 1) * link.latency_s for _, members, link in _levels(path))


def _ring_s_per_byte(path: LinkPath) -> float:
    """Transfer time of one pass, per byte of the whole: (n-1)/n of 1/p of it on the level that takes longest."""
    return max(
        ((members - 1) / members / inside / link.bandwidth_bytes_per_s for inside, members, link in _levels(path)),
        default=0.0,
    )


def all_gather_seconds(result_bytes: Bytes, path: LinkPath) -> Bytes:
    """Time of an all-gather.

    result_bytes  bytes each rank holds afterwards, not before

    startup + Σ (n-1)·latency + max over levels of (n-1)/n · result/p / bandwidth.
    """
    return _total(result_bytes, path, _ring_latency_s(path), _ring_s_per_byte(path))


def reduce_scatter_seconds(input_bytes: Bytes, path: LinkPath) -> Bytes:
    """Time of a reduce-scatter: an all-gather run backwards, and as long.

    input_bytes  bytes each rank holds before, not after
    """
    return _total(input_bytes, path, _ring_latency_s(path), _ring_s_per_byte(path))


def all_reduce_seconds(bytes: Bytes, path: LinkPath) -> Bytes:
    """Time of an all-reduce: a reduce-scatter and an all-gather, started once.

    bytes  bytes each rank holds, before and after

    startup + 2·Σ steps·latency + 2·max over levels of (n-1)/n · bytes/p / bandwidth. Steps are n-1 on the innermost
    level and, where a double binary tree joins the levels above, log2 n there (Jeaugey, "Massively scale your deep
    learning training with NCCL 2.4", 2019, after Sanders, Speck and Träff 2009): it moves the ring's bytes.

    A group on one level whose switch adds takes the shorter of the ring and the switch's startup + bytes / rate: each
    rank's bytes go up once and down once (Klenk et al. 2020, "An in-network architecture", ISCA).
    """
    latency_s = sum(
        (members - 1 if inside == 1 else math.log2(members)) * link.latency_s for inside, members, link in _levels(path)
    )
    ring_s = _total(bytes, path, 2 * latency_s, 2 * _ring_s_per_byte(path))
    spanned = [link for _, _, link in _levels(path)]
    switch = spanned[0].switch if len(spanned) == 1 else None
    if switch is None:
        return ring_s
    return np.minimum(ring_s, (bytes > 0) * (switch.startup_s + bytes / switch.bytes_per_s))


def all_to_all_seconds(bytes: Bytes, path: LinkPath) -> Bytes:
    """Time of an all-to-all in which every rank sends every other an equal share.

    bytes  bytes each rank holds, before and after

    startup + Σ peers·latency + max over levels of peers/ranks · bytes / bandwidth: pairwise exchange (Thakur et al.
    2005, section 4.2), where a device's peers at a level are those that share the level with it but not the member
    inside. Levels' links carry their peers' shares at the same time.
    """
    ranks = group_size(path)
    peers = [(inside * (members - 1), link) for inside, members, link in _levels(path)]
    latency_s = sum(count * link.latency_s for count, link in peers)
    transfer = max((count / ranks / link.bandwidth_bytes_per_s for count, link in peers), default=0.0)
    return _total(bytes, path, latency_s, transfer)


def broadcast_seconds(bytes: Bytes, path: LinkPath) -> Bytes:
    """Time of a broadcast of ``bytes`` from one rank: a pipelined chain.

    startup + Σ (n-1)·latency + bytes / the slowest link's bandwidth.
    """
    transfer = max((1 / link.bandwidth_bytes_per_s for _, _, link in _levels(path)), default=0.0)
    return _total(bytes, path, _ring_latency_s(path), transfer)


def send_seconds(bytes: Bytes, link: Link) -> Bytes:
    """Time of one message of ``bytes`` to a neighbour: startup + latency + bytes / bandwidth (Hockney 1994)."""
    return (bytes > 0) * (link.startup_s + link.latency_s + bytes / link.bandwidth_bytes_per_s)
