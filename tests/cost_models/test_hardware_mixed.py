"""Several kinds of device in one cluster: what holds for all of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.compute import (
    achieved_bytes_per_s,
    attention_seconds,
    matmul_seconds,
    memory_bound_seconds,
    peak_flops_per_s,
)
from cost_models.errors import ProfileError
from cost_models.hardware import device_names, load_device, slowest_of

DEVICES = {name: load_device(name)[0] for name in device_names()}
DEVICES["cached"] = dataclasses.replace(
    DEVICES["cpu"], name="cached", cache_bytes=1e6, cache_bandwidth_bytes_per_s=50e9, update_efficiency=0.7,
    blocking=True,
)  # fmt: skip
DEVICES["better cached"] = dataclasses.replace(
    DEVICES["cached"], name="better cached", cache_bytes=4e6, cache_bandwidth_bytes_per_s=90e9
)
some = st.lists(st.sampled_from(sorted(DEVICES)), min_size=2, max_size=3, unique=True).map(
    lambda names: [DEVICES[name] for name in names]
)


def test_the_worst_of_an_h100_and_an_a100():
    h100, a100 = DEVICES["h100-sxm"], DEVICES["a100-sxm-80gb"]
    both = slowest_of([h100, a100, h100])
    assert both.name == "h100-sxm + a100-sxm-80gb"
    assert both.usable_bytes == min(h100.usable_bytes, a100.usable_bytes)
    assert peak_flops_per_s(both, "bfloat16") == 312e12
    with pytest.raises(ProfileError, match="has no peak for it"):
        peak_flops_per_s(both, "float8")
    # a share of its higher peak that is smaller doesn't make the H100 the slower one
    shape = 4, 16, 4096, 4096, 128, True, "bfloat16"
    assert attention_seconds(*shape, both) == pytest.approx(attention_seconds(*shape, a100), rel=0.05)
    assert matmul_seconds(4096, 4096, 4096, 1, "bfloat16", both) == pytest.approx(
        matmul_seconds(4096, 4096, 4096, 1, "bfloat16", a100), rel=0.05
    )


def test_one_kind_is_itself():
    assert slowest_of([DEVICES["cpu"]]) is DEVICES["cpu"]
    assert slowest_of([DEVICES["cpu"], DEVICES["cpu"]]) is DEVICES["cpu"]


def test_a_figure_that_one_kind_lacks_all_lack():
    assert DEVICES["cpu"].scores_efficiency is None and DEVICES["h100-sxm"].scores_efficiency is not None
    assert slowest_of([DEVICES["h100-sxm"], DEVICES["b200"]]).scores_efficiency is None


@given(some)
def test_no_rate_of_the_composite_is_above_any_of_its_parts(devices):
    both = slowest_of(devices)
    for device in devices:
        for dtype, peak in both.peaks:
            own = peak_flops_per_s(device, dtype)
            sustained, theirs = both.matmul_sustained, own * device.matmul_sustained
            assert peak * both.matmul_efficiency * sustained <= theirs * device.matmul_efficiency * (1 + 1e-9)
            for share in ("attention_efficiency", "attention_backward_efficiency"):
                assert peak * getattr(both, share) <= own * getattr(device, share) * (1 + 1e-9)
        if both.scores_efficiency is not None:
            own_scores = achieved_bytes_per_s(device) * device.scores_efficiency
            assert achieved_bytes_per_s(both) * both.scores_efficiency <= own_scores * (1 + 1e-9)
        assert achieved_bytes_per_s(both) <= achieved_bytes_per_s(device) * (1 + 1e-9)
        assert both.usable_bytes <= device.usable_bytes
        own_update = achieved_bytes_per_s(device) * device.update_efficiency
        assert achieved_bytes_per_s(both) * both.update_efficiency <= own_update * (1 + 1e-9)
    assert 0 < both.usable_bytes < both.memory_bytes


def test_a_cache_is_kept_where_all_have_one():
    both = slowest_of([DEVICES["cached"], DEVICES["better cached"]])
    assert (both.cache_bytes, both.cache_bandwidth_bytes_per_s) == (1e6, 50e9)
    assert slowest_of([DEVICES["cached"], DEVICES["cpu"]]).cache_bytes == 0
    assert both.blocking and slowest_of([DEVICES["cached"], DEVICES["cpu"]]).blocking


@given(some, st.floats(1.0, 1e12))
def test_a_stream_takes_as_long_as_on_the_worst(devices, bytes):
    worst = max(memory_bound_seconds(bytes, device) for device in devices)
    assert memory_bound_seconds(bytes, slowest_of(devices)) >= worst * (1 - 1e-9)


@given(some, st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_a_large_product_takes_about_as_long_as_on_the_worst(devices, m, n, k):
    """Tiles and waves can't be mixed: on whole tiles of thousands the difference is small."""
    shape = 512 * m, 512 * n, 512 * k, 64, "float16"
    worst = max(matmul_seconds(*shape, device) for device in devices)
    assert matmul_seconds(*shape, slowest_of(devices)) >= worst * 0.9


@given(some)
def test_the_order_of_the_kinds_only_names_them(devices):
    one, other = slowest_of(devices), slowest_of(devices[::-1])
    unordered = {"name": "", "peaks": (), "matmul_shares": ()}
    assert dataclasses.replace(one, **unordered) == dataclasses.replace(other, **unordered)
    assert dict(one.peaks) == dict(other.peaks) and dict(one.matmul_shares) == dict(other.matmul_shares)


def test_kinds_without_a_common_dtype_are_refused():
    only = (("cpu", "float32"), ("l40s", "float8"))
    cpu, l40s = (dataclasses.replace(DEVICES[name], peaks=((dtype, 1e12),)) for name, dtype in only)
    with pytest.raises(ProfileError) as caught:
        slowest_of([cpu, l40s])
    assert str(caught.value) == "cpu + l40s: have no dtype in common. Plan for the kinds apart."
