"""Buckets: every gradient in one, in order, none larger than it need be."""

from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.buckets import LEAST_BYTES, MOST_BYTES, SHARES, bucket_bytes, cut


@given(st.lists(st.integers(0, 3 * MOST_BYTES), max_size=40))
def test_every_gradient_is_in_one_bucket_in_order(sizes: list[int]) -> None:
    found = cut(sizes)
    assert [place for bucket in found for place in bucket] == list(range(len(sizes)))
    limit = bucket_bytes(sum(sizes))
    filled = [sum(sizes[i] for i in bucket) for bucket in found]
    assert all(size >= limit for size in filled[:-1])
    assert all(size - sizes[bucket[-1]] < limit for size, bucket in zip(filled, found, strict=True))


def test_a_bucket_is_an_eighth_where_that_is_neither_small_nor_large() -> None:
    assert bucket_bytes(0) == bucket_bytes(LEAST_BYTES) == LEAST_BYTES
    assert bucket_bytes(16 * LEAST_BYTES) == 16 * LEAST_BYTES / SHARES
    assert bucket_bytes(1000 * MOST_BYTES) == MOST_BYTES
    assert [len(bucket) for bucket in cut([LEAST_BYTES // 2] * 8)] == [2, 2, 2, 2]
