"""What a backward hides of the gradients' sums: by where in it each bucket is complete."""

from __future__ import annotations

import pytest

from autoplan.cost.zero_costs import Backward

SLOWDOWN = 0.25


def hidden_s(backward: Backward, sizes: list[float], spent_s: float, bucket: float = 1.0, copied_s: float = 0.0):
    return backward.hidden_s(sizes, bucket, spent_s, SLOWDOWN, copied_s)


def test_of_even_segments_all_but_the_last_bucket_hides_or_all_but_the_first_buckets_time() -> None:
    backward, sizes = Backward([2.0] * 4), [2.0] * 4
    assert hidden_s(backward, sizes, 1e-3) == pytest.approx(1e-3 * (1 - 2 / 8) / (1 + SLOWDOWN))  # as the first ends
    assert hidden_s(backward, sizes, 1e3) == pytest.approx(8.0 * (1 - 1 / 8))


def test_gradients_that_come_late_hide_under_what_is_left() -> None:
    """A recommender's tables, read by the segment behind a small one: their sums have its backward alone."""
    late, early = (Backward(each, at_once=True) for each in ([1.0, 9.0], [9.0, 1.0]))
    sizes = [1e-6, 8.0]
    assert hidden_s(late, sizes, 80.0) == pytest.approx(1.0)
    assert hidden_s(early, sizes, 80.0) == pytest.approx(9.0)


def test_a_compiled_segment_gives_its_gradients_as_it_ends() -> None:
    sizes, each_s = [4.0, 4.0], [5.0, 5.0]
    assert hidden_s(Backward(each_s, at_once=True), sizes, 1e3) == pytest.approx(5.0)
    assert hidden_s(Backward(each_s), sizes, 1e3) == pytest.approx(10.0 - 5.0 / 4)


def test_segments_without_gradients_add_time_alone() -> None:
    with_none = Backward([1.0, 3.0, 2.0], after_s=4.0, at_once=True)
    assert hidden_s(with_none, [2.0, 0.0, 2.0], 1e3) == pytest.approx(3.0 + 1.0 + 4.0)
    assert hidden_s(with_none, [2.0, 0.0, 2.0], 1e-3) == pytest.approx(1e-3 / (1 + SLOWDOWN))


def test_copies_into_later_buckets_hide_what_they_follow() -> None:
    backward = Backward([1.0], at_once=True)
    assert hidden_s(backward, [4.0], 1e3) == pytest.approx(0.0)
    assert hidden_s(backward, [4.0], 1e3, copied_s=0.4) == pytest.approx(0.3)


def test_a_large_gradient_lies_in_one_bucket() -> None:
    """Beside others that fill more: its copy is over before its sum begins."""
    sizes, spent_s = [4.0], 1e3
    assert hidden_s(Backward([1.0], at_once=True, largest=[3.0]), sizes, spent_s, copied_s=0.4) == pytest.approx(0.1)
    assert hidden_s(Backward([1.0], at_once=True, largest=[0.5]), sizes, spent_s, copied_s=0.4) == pytest.approx(0.3)


def test_where_nothing_is_known_of_segments_each_byte_takes_as_long() -> None:
    assert Backward.even([1.0, 3.0], 8.0) == Backward([2.0, 6.0])
