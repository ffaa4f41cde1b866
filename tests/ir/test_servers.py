"""Shards of parameter servers: whole parameters, the same on every rank, near to an even share."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.buckets import server_ranks, shard_sizes, shards

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 3), st.randoms())
def test_the_fullest_shard_is_as_near_to_the_least_as_graham_says(sizes: list[int], servers: int, order) -> None:
    named = {f"p{n}": float(size) for n, size in enumerate(sizes)}
    found = shard_sizes(named, servers)
    best = min(
        max(sum(s for s, at in zip(sizes, places, strict=True) if at == k) for k in range(servers))
        for places in itertools.product(range(servers), repeat=len(sizes))
    )
    assert best <= max(found) <= best * (4 / 3 - 1 / (3 * servers)) and sum(found) == sum(sizes)
    mixed = list(named.items())
    order.shuffle(mixed)
    assert shards(dict(mixed), servers) == shards(named, servers)


def test_servers_lie_apart() -> None:
    assert [server_ranks(n, 8) for n in (1, 2, 3, 8)] == [(0,), (0, 4), (0, 2, 5), tuple(range(8))]
