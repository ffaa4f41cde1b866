"""A collective's time over the levels that its group spans, in seconds.

A group is a ``LinkPath`` as ``Topology.axis`` returns it: (members, link) for each level, innermost first. Bytes are a
number, a NumPy array, or a SymPy expression. One rank costs 0, and so do 0 bytes.

Each way of running a collective is a startup, a latency for each of its steps and a time for each byte (Hockney 1994;
Thakur, Rabenseifner and Gropp 2005, section 4): its levels work at the same time on different chunks, so latencies add
up and the slowest level's bytes set the pace. A collective takes the shortest of its ways, as NCCL's tuner means to
(src/graph/tuning.cc): algorithms (ring, tree, a switch that adds) times protocols (``Protocol``). The shortest of
straight lines has no jumps where the choice changes.

A link may have figures of its own for a kind of collective (``Link.kinds``); what follows reads those.
"""

from __future__ import annotations

from collections.abc import Callable

from cost_models.arithmetic import Number, log2, maximum, minimum, where_positive
from cost_models.collective.spans import Span, protocols, spans
from cost_models.hardware import Link, LinkPath


def all_gather_seconds(result_bytes: Number, path: LinkPath) -> Number:
    """Time of an all-gather, in seconds: a ring.

    result_bytes  bytes each rank holds afterwards, not before

    startup + Σ steps·latency + max over levels of (N-1)/N · share of the level · result / bandwidth.
    """
    return _ring(result_bytes, spans(path, "all-gather"), 1)


def reduce_scatter_seconds(input_bytes: Number, path: LinkPath) -> Number:
    """Time of a reduce-scatter, in seconds: an all-gather run backwards.

    input_bytes  bytes each rank holds before, not after
    """
    return _ring(input_bytes, spans(path, "reduce-scatter"), 1)


def all_reduce_seconds(bytes: Number, path: LinkPath) -> Number:
    """Time of an all-reduce, in seconds: the shortest of a ring, a tree and a switch that adds.

    bytes  bytes each rank holds, before and after

    The ring is a reduce-scatter and an all-gather, started once. For the tree and the switch see ``_tree``.
    """
    levels = spans(path, "all-reduce")
    ways = [_ring(bytes, levels, 2)]
    if any(span.link.tree_latency_s is not None or _adds(span) for span in levels):
        ways.append(_tree(bytes, levels))
    return minimum(*ways) if len(ways) > 1 else ways[0]


def all_to_all_seconds(bytes: Number, path: LinkPath) -> Number:
    """Time of an all-to-all in which every rank sends every other an equal share, in seconds.

    bytes  bytes each rank holds, before and after

    startup + Σ peers·latency + max over levels of peers/N · bytes / bandwidth: pairwise exchange (Thakur et al. 2005,
    section 4.2), where a device's peers at a level are those that share the level with it but not the member inside.
    Levels' links carry their peers' shares at the same time.
    """
    return _shortest(bytes, spans(path, "all-to-all"), lambda span: span.peers, lambda span: span.peers / span.ranks)


def broadcast_seconds(bytes: Number, path: LinkPath) -> Number:
    """Time of a broadcast of ``bytes`` from one rank, in seconds: a ring left open, its chunks following each other.

    startup + Σ steps·latency + max over levels of share of the level · bytes / bandwidth.
    """
    levels = spans(path, "broadcast")
    return _shortest(bytes, levels, lambda span: span.ring_steps, lambda span: span.ring_share)


def send_seconds(bytes: Number, link: Link) -> Number:
    """Time of one message of ``bytes`` to a neighbour, in seconds: startup + latency + bytes / bandwidth."""
    return _shortest(bytes, spans(((2, link),), "send"), lambda span: 1, lambda span: 1.0)


def _ring(bytes: Number, levels: tuple[Span, ...], rounds: int) -> Number:
    """``rounds`` times round the ring: (N-1)/N of the data passes every rank each time."""
    return _shortest(
        bytes,
        levels,
        lambda span: rounds * span.ring_steps,
        lambda span: rounds * (span.ranks - 1) / span.ranks * span.ring_share,
    )


def _shortest(
    bytes: Number, levels: tuple[Span, ...], steps: Callable[[Span], int], share: Callable[[Span], float]
) -> Number:
    """The shortest over the protocols.

    steps  of a level, each of which costs a latency
    share  of the bytes that a device's share of the level carries
    """
    if not levels:
        return 0.0 * bytes
    startup_s = maximum(*(span.link.startup_s for span in levels))
    ways = []
    for protocol in protocols(levels):
        latency_s = sum(steps(span) * span.latency_s(protocol) for span in levels)
        transfer = maximum(*(share(span) / span.bandwidth_bytes_per_s(protocol) for span in levels))
        ways.append(startup_s + latency_s + bytes * transfer)
    return where_positive(bytes, minimum(*ways), 0.0)


def _adds(span: Span) -> bool:
    """Whether the level's switch adds for this group: innermost, or over whole members."""
    return span.link.switch is not None and span.members >= span.link.switch.members


def _tree(bytes: Number, levels: tuple[Span, ...]) -> Number:
    """Up a tree and down again, of which each level is a part; the shortest over the protocols.

    Where a level's switch adds: its startup, and bytes / its rate, each rank's bytes going up once and down once (Klenk
    et al. 2020, "An in-network architecture", ISCA). Where the library builds trees, a double binary one (Sanders,
    Speck and Träff 2009; Jeaugey, "Massively scale your deep learning training with NCCL 2.4", 2019): log2 m steps up
    and as many down. Elsewhere a chain of the members, as NCCL's trees are inside a node.
    """
    startup_s = maximum(*(_tree_startup_s(span) for span in levels))
    ways = []
    for protocol in protocols(levels):
        latency_s = sum(_tree_latency_s(span, protocol) for span in levels)
        transfer = maximum(*(_tree_s_per_byte(span, protocol) for span in levels))
        ways.append(startup_s + latency_s + bytes * transfer)
    return where_positive(bytes, minimum(*ways), 0.0)


def _tree_startup_s(span: Span) -> Number:
    return span.link.switch.startup_s if span.link.switch and _adds(span) else span.link.startup_s


def _tree_latency_s(span: Span, protocol: str) -> Number:
    if _adds(span):
        return 0.0
    if span.link.tree_latency_s is None:
        return 2 * (span.members - 1) * span.latency_s(protocol)
    hop_s = minimum(span.link.tree_latency_s, span.latency_s(protocol)) if protocol else span.link.tree_latency_s
    return 2 * log2(span.members) * hop_s


def _tree_s_per_byte(span: Span, protocol: str) -> Number:
    """Seconds for each byte of the whole. A member passes all its bytes up and all down: twice the bytes go out by its
    link, in a double binary tree too, where it has two children in one half of the data and none in the other. Of two
    members each could do with half of that; steps whose tensor axis spans two nodes don't show it (they run at the
    ring's rate: VIA-Research/vTrain@f8dda847, its rows of 16 tensor ranks), so it isn't counted on."""
    if span.link.switch and _adds(span):
        return 1 / span.link.switch.bytes_per_s / span.inside
    return 2.0 / span.inside / span.bandwidth_bytes_per_s(protocol)
