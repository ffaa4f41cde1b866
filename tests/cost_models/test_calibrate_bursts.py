"""What a link lets through at once after a pause, from seconds as a token bucket would give them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.calibrate.bursts import burst_bytes

SIZE = 2**20


def shaped(burst: float, rate: float, wake_s: float, noise: float = 0.0, rounds: int = 9, seed: int = 0) -> list:
    """Seconds of an empty message, of one and of three, by a bucket that was full before each."""
    draw = random.Random(seed)

    def seconds(messages: int) -> float:
        return (wake_s + max(messages * SIZE - burst, 0.0) / rate) * (1 + noise * draw.uniform(-1, 1))

    return [(seconds(0), seconds(1), seconds(3)) for _ in range(rounds)]


@given(st.floats(0.05, 1.0), st.floats(1e6, 1e10), st.floats(0, 1e-2))
def test_a_bucket_of_tokens_is_found(share: float, rate: float, wake_s: float) -> None:
    found = burst_bytes(shaped(share * SIZE, rate, wake_s), SIZE)
    assert found == pytest.approx(share * SIZE, rel=1e-3, abs=1.0 + 1e-9 * rate)


def test_a_bucket_is_found_under_noise() -> None:
    found = burst_bytes(shaped(0.25 * SIZE, 25e6, 1e-3, noise=0.02, rounds=15), SIZE)
    assert found == pytest.approx(0.25 * SIZE, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_bucket(seed: int) -> None:
    assert burst_bytes(shaped(0.0, 25e6, 1e-3, noise=0.005, seed=seed), SIZE) == 0.0


def test_what_takes_no_longer_for_more_is_no_bucket() -> None:
    assert burst_bytes([(1e-3, 2e-3, 2e-3), (1e-3, 2e-3, 1e-3), (1e-3, 3e-3, 3e-3)], SIZE) == 0.0
