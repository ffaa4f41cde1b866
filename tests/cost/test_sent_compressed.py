"""The prices of int8, fp8, 1-bit Adam and top-k: the bytes of what the runtime sends and keeps, where they pay."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost.sent_compressed import compressed_cost, kept_bytes, together
from autoplan.ir.buckets import BLOCK, Compression, two_levels
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism, Training
from autoplan.runtime.parallel.compression.kinds import compressor
from autoplan.runtime.parallel.compression.two_levels import TwoLevelSums
from autoplan.runtime.parallel.own_box import whole
from autoplan.search.entry import search
from autoplan.search.predict import COMPRESSED
from tests.support.hand_made import mlp

SHAPES, RANKS = ((48, 32), (48, 32), (16, 70), (8, 4, 12)), 3
INT8, FP8, SIGNS, TOP_K = Compression("int8"), Compression("fp8"), Compression("1bit"), Compression("topk", rate=0.05)


def made(how: Compression) -> Any:
    held: Any = [
        SimpleNamespace(name=str(n), part=whole(shape), parameter=p, values=p.detach())
        for n, (shape, p) in enumerate((shape, nn.Parameter(torch.zeros(shape))) for shape in SHAPES)
    ]  # fmt: skip
    group: Any = SimpleNamespace(size=lambda: RANKS, rank=lambda: 1)
    return compressor(how, held, group, 0)


def test_bytes_are_those_that_the_runtime_sends_and_keeps() -> None:
    kinds = {"dp": Counter(SHAPES)}
    int8, fp8, signs, top_k = made(INT8), made(FP8), made(SIGNS), made(TOP_K)
    for how, sums in ((INT8, int8), (FP8, fp8), (SIGNS, signs)):
        sizes = (("all-to-all", sums.sent.numel()), ("all-gather", sums.sent.numel() + RANKS * len(SHAPES)))
        assert compressed_cost(kinds, how, 4).messages("dp", RANKS) == sizes
    assert compressed_cost(kinds, TOP_K, 4).messages("dp", RANKS) == (("all-gather", RANKS * sum(top_k.parts)),)
    fresh = kept_bytes(SHAPES[0], Compression("1bit-lamb"), 4, RANKS) - kept_bytes(SHAPES[0], SIGNS, 4, RANKS)
    assert fresh == 4 * 48 * 32, "the variance that goes on"
    tensors = {how: (x.sent, x.elements, x.added) for how, x in ((INT8, int8), (FP8, fp8))}
    tensors[SIGNS] = (*signs.errors, signs.sent, signs.elements, signs.added, signs.left)
    came, places = torch.zeros(RANKS, sum(top_k.parts), dtype=torch.uint8), top_k.begins
    tensors[TOP_K] = (*top_k.errors, came, places, places, places, *(came[0, : top_k.parts[0]],) * 2)
    for how, there in tensors.items():
        priced, kept = sum(kept_bytes(shape, how, 4, RANKS) for shape in SHAPES), sum(x.nbytes for x in there)
        filled = RANKS * len(SHAPES) + (how is not TOP_K) * 2 * RANKS * BLOCK * 4
        assert abs(priced - kept) <= filled, "blocks that fill up the last share, and flags"


def test_stages_of_a_rank_send_as_one() -> None:
    """Blocks that fill up a rank's share are there once."""
    each = [compressed_cost({"dp": Counter([shape])}, INT8, 4) for shape in SHAPES]
    sent = together(each).messages("dp", 4)
    assert sent == compressed_cost({"dp": Counter(SHAPES)}, INT8, 4).messages("dp", 4)
    assert sent[0][1] < sum(one.messages("dp", 4)[0][1] for one in each)


@pytest.mark.parametrize("how", [INT8, TOP_K, Compression("powersgd", rank=2)], ids=lambda how: how.kind)
def test_of_two_levels_the_bytes_are_those_of_the_fullest_owner(how: Compression) -> None:
    """By the runtime's own shares of four ranks, two of which lie together."""
    held = made(how).held
    both: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    sums = TwoLevelSums(held, both, both, lambda mine: compressor(how, mine, both, 0))
    fullest = max(sums.owned, key=lambda owned: sum(h.values.numel() for h in owned))
    mesh = Mesh.of(dp=4)
    prices: Any = SimpleNamespace(mesh=mesh)
    sent = compressed_cost({"dp": Counter(SHAPES)}, replace(how, within=2), 4).sent("dp", prices)
    first, *between, last = sent
    assert first == ("reduce-scatter", 2 * 4 * sums.row, "dp.inner2") and last == ("all-gather", *first[1:])
    shapes = Counter(tuple(h.values.shape) for h in fullest)
    assert tuple(between) == compressed_cost({"dp.outer2": shapes}, how, 4).sent("dp.outer2", prices)


def test_what_lies_together_with_different_experts_sums_nothing_of_them_whole() -> None:
    """Of eight data-parallel ranks of two experts each, four together: two have the same; two together: none has."""
    assert two_levels(("dp",), 4, 4, 2) == (("dp.inner2",), ("dp.outer2",))
    assert two_levels(("dp", "ep"), 4, 4, 2) == (("dp.inner2", "ep"), ("dp.outer2",))
    assert two_levels(("dp", "ep"), 2, 4, 2) == (("ep",), ("dp",)) and two_levels(("dp",), 2, 4, 2) == ((), ("dp",))
    prices: Any = SimpleNamespace(mesh=Mesh.of(dp=4, ep=2))
    whole_groups, how = {"dp": Counter(SHAPES)}, Compression("powersgd", rank=2)
    sent = compressed_cost(whole_groups, replace(how, within=2), 4).sent("dp", prices)
    assert sent == compressed_cost(whole_groups, how, 4).sent("dp", prices)


@pytest.mark.parametrize(("kind", "sent", "kept"), [("int8", 0.52, 0.79), ("fp8", 0.52, 0.79), ("topk", 0.042, 1.13)])
def test_they_pay_on_a_slow_network_and_take_memory(kind: str, sent: float, kept: float) -> None:
    """``sent``, ``kept``: at most, for each byte of the gradients."""

    def planned(compression: str | None) -> Any:
        pinned = Parallelism(dp=2, tp=1, pp=1, zero=0, compression=compression)
        cluster = ClusterSpec.parse("2x1 h100-sxm network=ethernet-10g")
        model = mlp(batch=256, width=2048, hidden=8192, layers=2)
        return search(model, cluster, Training(), pinned)[0].predicted

    plain, less = planned(None), planned(kind)
    assert less.step_time_s < 0.6 * plain.step_time_s
    gradients = plain.peak_bytes[0].gradients
    assert 0.9 * sent * gradients < sum(c.bytes for c in less.collectives if c.where == COMPRESSED) < sent * gradients
    more = less.peak_bytes[0].parameters - plain.peak_bytes[0].parameters
    assert 0.9 * kept * gradients < more < kept * gradients
