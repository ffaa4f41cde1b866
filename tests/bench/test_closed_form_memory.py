"""Published bytes: the analytic tables to the digits that are printed, the measured ones within what we claim."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy

from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.memory import MEMORY_TABLES, memory_results
from tests.bench.closed_form.memory.analytic import formula
from tests.bench.closed_form.memory.megatron import CONFIGS, megatron_peak, megatron_steady
from tests.bench.closed_form.memory.torchtitan import torchtitan_point
from tests.bench.closed_form.metrics import errors_of
from tests.bench.closed_form.published import SHIPPED, default_folder
from tests.bench.closed_form.result import TableResult
from tests.bench.closed_form.rows import Row, rows_of

BOUNDS = {  # mean error, and the greatest
    "megatron_core peak memory": (0.03, 0.11),
    "megatron_core between steps": (0.06, 0.11),
    "torchtitan memory": (0.04, 0.10),
    "alpa_gpt memory": (0.09, 0.11),
    "zero states": (0.002, 0.025),
    "korthikanti formulas": (0.0005, 0.002),
}
FOLDERS = sorted({SHIPPED, default_folder()})


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def results(request: pytest.FixtureRequest) -> dict[str, TableResult]:
    return {result.name: result for result in memory_results(request.param)}


def test_every_table_is_there(results: dict[str, TableResult]) -> None:
    assert set(results) == {table.name for table in MEMORY_TABLES}
    for result in results.values():
        assert result.quantity == "memory, GiB" and result.assumption and not result.fitted and len(result.points) >= 4


@pytest.mark.parametrize("name", BOUNDS)
def test_errors(results: dict[str, TableResult], name: str) -> None:
    mean, maximum = BOUNDS[name]
    errors = results[name].errors
    assert errors is not None and errors.mean <= mean and errors.maximum <= maximum


def test_zero_table_1_to_its_digits(results: dict[str, TableResult]) -> None:
    """Cut off or rounded: less than one of the last digit printed, which the CSV writes as the paper does."""
    for point in results["zero states"].points:
        predicted, printed = (value * 2**30 / 1e9 for value in (point.predicted, point.measured))
        digits = f"{printed:.6f}".rstrip("0").partition(".")[2]
        assert abs(predicted - printed) < 10.0 ** -len(digits) + 1e-9, point.label


def test_korthikantis_formulas_exactly(results: dict[str, TableResult]) -> None:
    formulas = [point for point in results["korthikanti formulas"].points if point.group == "175B"]
    assert len(formulas) == 7
    assert all(point.predicted == pytest.approx(point.measured, rel=1e-14) for point in formulas)


def test_torchgpipes_states(results: dict[str, TableResult]) -> None:
    measured = [point for point in results["gpipe states"].points if point.group == "torchgpipe P40"]
    assert measured and all(abs(point.error) < 0.005 for point in measured)


def test_only_arithmetic_is_read_as_a_formula() -> None:
    s, b, h = sympy.symbols("s b h")
    assert formula("s*b*h*(34 + 5)") == 39 * s * b * h
    assert formula("2*s*[p==1]") == 2 * s
    for text in ("__import__('os')", "s.real", "L layers", "exit"):
        with pytest.raises(ValueError, match="arithmetic"):
            formula(text)


def megatron(**change: str) -> Row:
    rows = rows_of(SHIPPED / "megatron_ci_curated_large.csv")
    return Row(1, rows[0].text | {key.replace("_", "-"): value for key, value in change.items()})


def test_the_last_rank_is_predicted() -> None:
    row = megatron()
    assert megatron_peak(row).measured == 56.335 and megatron_steady(row).measured == 22.828
    assert megatron_peak(row).predicted > megatron_steady(row).predicted


def test_a_row_without_its_devices_needs_a_batch_that_says_little() -> None:
    """The optimizer's state is an eighth of 7B's peak on 2 data ranks: whether there are 1 or 8 of them matters."""
    row = megatron()
    del row.text["n_gpus_recipe"]
    with pytest.raises(Unusable, match="the number of devices isn't stated"):
        megatron_peak(row)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"multi_latent_attention": "True"}, "latent attention"), ({"case": "t5_release"}, "no closed form")],
)
def test_rows_that_are_left_out(change: dict[str, str], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        megatron_peak(megatron(**change))


def test_every_configuration_says_where_it_is_from() -> None:
    for config in rows_of(CONFIGS):
        assert config["case"] in config["source"] and config.whole("vocabulary") > 0


PUBLISHED_ELSEWHERE = [  # pytorch/torchtitan@b5bcd76c benchmarks/llama3_h100_202412_torchtitan.md, tables 2 and 6
    ("Llama3.1-8B", 8, 8, 1, 1, 1, 1, 32768, 83.9), ("Llama3.1-8B", 8, 2, 1, 1, 4, 1, 131072, 84.0),
    ("Llama3.1-8B", 8, 1, 1, 1, 8, 1, 262144, 84.5), ("Llama3.1-405B", 512, 8, 8, 8, 1, 8, 32768, 75.3),
    ("Llama3.1-405B", 512, 4, 8, 8, 2, 8, 65536, 75.9), ("Llama3.1-405B", 512, 2, 8, 8, 4, 8, 131072, 77.1),
    ("Llama3.1-405B", 512, 1, 8, 8, 8, 8, 262144, 84.9),
]  # fmt: skip


def test_rows_that_no_table_of_ours_holds() -> None:
    names = ("model", "n_gpus", "FSDP", "TP", "PP", "CP", "local_batch", "seq_len", "memory_GiB_max_rank")
    how = {"table": "", "activation_ckpt": "full", "technique": "compile+float8+AsyncTP", "tokens_per_s_per_gpu": "1"}
    rows = [Row(1, how | dict(zip(names, map(str, figures), strict=True))) for figures in PUBLISHED_ELSEWHERE]
    errors = errors_of([torchtitan_point(row) for row in rows])
    assert errors is not None and errors.mean < 0.04 and errors.maximum < 0.12


def test_a_folder_without_tables_has_no_results(tmp_path: Path) -> None:
    assert memory_results(tmp_path) == ()
