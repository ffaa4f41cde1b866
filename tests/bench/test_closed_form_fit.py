"""Figures found again from steps that were predicted with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.figures import Figures
from cost_models.hardware import PROFILES
from tests.bench.closed_form.case import STEP, Case, Machines
from tests.bench.closed_form.fitting.both_ways import FITTED, both_ways
from tests.bench.closed_form.fitting.steps import FIGURES, figure_named, fit, with_figures
from tests.bench.closed_form.predict import predicted_s
from tests.bench.closed_form.tables.megatron import gpt
from tests.bench.closed_form.transformer.model import Recipe

TRUE = {"matmul_sustained": 0.7, "memory_efficiency": 0.6}


def made_up(table: str, hidden: int, row: int, device: str = "a100-sxm-80gb") -> Case:
    """A step whose measured time is what the cost models say under ``TRUE``."""
    model, recipe = gpt(hidden, 4, hidden // 128, 1024, 32000), Recipe(data=8, micro_batch=4)
    case = Case(table, row, f"row {row}", "", STEP, model, recipe, Machines().of(device, 8), 1.0)
    return replace(case, measured_s=predicted_s(replace(case, topology=with_figures(case.topology, TRUE))))


def test_figures_are_found_again_and_every_table_is_reported() -> None:
    cases = [made_up(table, 1024 * row, row) for table in ("one", "two") for row in range(1, 6)]
    found = fit(cases, tuple(TRUE))
    assert dict(found.values) == pytest.approx(TRUE, rel=1e-2)
    assert [table.table for table in found.after] == ["one", "two"]
    for before, after in zip(found.before, found.after, strict=True):
        assert before.reported is not None and after.reported is not None and after.fitted is not None
        assert after.reported.mean < 0.005 < before.reported.mean
        assert (after.fitted.count, after.reported.count) == (3, 2)


def test_an_outlier_does_not_lead() -> None:
    cases = [made_up("one", 1024 * row, row) for row in range(1, 12)]
    spoilt = [replace(case, measured_s=case.measured_s * (5 if case.row == 5 else 1)) for case in cases]
    found = dict(fit(spoilt, ("matmul_sustained",)).values)
    straight = dict(fit(cases, ("matmul_sustained",)).values)
    assert found["matmul_sustained"] == pytest.approx(straight["matmul_sustained"], rel=0.15)


def test_lines_for_a_profile_stand_below_their_sections() -> None:
    lines = fit([made_up("one", 2048, 1)], ("matmul_sustained", "nic.bandwidth")).toml().splitlines()
    assert lines[0] == "[matmul]" and lines[1].startswith("sustained = { value = 0.")
    assert lines[2] == "[links.nic]" and lines[3].startswith("# bandwidth: times")


def test_links_are_scaled_level_by_level() -> None:
    before = Machines().of("a100-sxm-80gb", 16)
    after = with_figures(before, {"nic.bandwidth": 0.5})
    (node, cluster), (same, slower) = before.levels, after.levels
    assert same == node
    assert slower.link.bandwidth_bytes_per_s == cluster.link.bandwidth_bytes_per_s / 2


def test_a_profile_holds_every_figure_where_the_fit_says() -> None:
    """A value read back from the profile at its section and key is the device's field, or the topology's."""
    topology = Machines().of("a100-sxm-80gb", 16)
    tables = Figures.read(PROFILES / "a100-sxm-80gb.toml").tables
    for figure in FIGURES:
        if not figure.factor and not figure.dtype:
            held = tables[figure.section][figure.key]
            assert held["unit"] == figure.unit
            assert held["value"] * figure.scale == pytest.approx(figure.of(topology)), figure.name


def test_each_half_is_met_by_the_other_s_figures() -> None:
    """On a device twice as slow in the odd rows: each half is met by what the other half tells."""
    cases = [made_up("one", 1024 * size, row) for row, size in enumerate((1, 2, 3, 4), start=1)]
    told = [replace(case, measured_s=predicted_s(case) * (1 if case.row % 2 else 2)) for case in cases]
    (errors,) = both_ways(told, ("matmul_sustained",))
    assert errors.odd is not None and errors.even is not None and errors.together is not None
    assert errors.odd.count == errors.even.count == 2 and errors.together.count == 4
    assert errors.odd.signed < -0.2 < 0.2 < errors.even.signed


def test_the_fitted_figures_are_known() -> None:
    for device, names in FITTED.items():
        assert all(figure_named(name).of(Machines().of(device, 16)) > 0 for name in names)


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="these can: matmul_sustained"):
        fit([made_up("one", 1024, 1)], ("colour",))
    with pytest.raises(ValueError, match="one device"):
        fit([made_up("one", 1024, 1), made_up("one", 1024, 2, "a100-sxm-40gb")], ("matmul_sustained",))
    with pytest.raises(ValueError, match="no published steps"):
        fit([], ("matmul_sustained",))
