"""Rows of published tables as cases: shapes, batches and times agree with what the rows state beside them."""

from __future__ import annotations

import pytest

from tests.bench.closed_form.case import Machines
from tests.bench.closed_form.published import SHIPPED, cases_on
from tests.bench.closed_form.rows import Row, Table, read_table, rows_of
from tests.bench.closed_form.tables import TABLES

MPT_ROW = {
    "model": "30b", "params": "29989894144", "hidden_recalled": "7168", "layers_recalled": "48",
    "heads_recalled": "56", "seq_len": "4096", "n_gpus": "8", "gpu": "h100_80gb", "micro_batch": "1",
    "grad_accum": "21", "global_batch": "168", "precision": "amp_bf16", "sharding": "FULL_SHARD",
    "activation_ckpt": "True", "act_cpu_offload": "False", "derived_iter_s": "47.7",
}  # fmt: skip


def table(name: str) -> Table:
    return next(table for table in TABLES if table.name == name)


def test_a_row_of_fsdp_has_the_stated_parameters_and_batch() -> None:
    read = read_table(table("mpt_fsdp"), [Row(1, MPT_ROW)])
    (case,) = read.cases
    assert case.model.parameters == int(MPT_ROW["params"])
    assert case.recipe.sequences == int(MPT_ROW["global_batch"])
    assert (case.recipe.zero, case.recipe.recompute, case.device) == (3, "full", "h100-sxm")
    assert case.topology.devices == 8 and case.measured_s == 47.7 and case.row == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "tpu"}, "tpu"),
        ({"act_cpu_offload": "True"}, "offloaded"),
        ({"derived_iter_s": ""}, "derived_iter_s isn't stated"),
        ({"derived_iter_s": "-1"}, "not positive"),
        ({"n_gpus": "12"}, "nodes of 8"),
        ({"n_gpus": "many"}, "whole number"),
    ],
)
def test_a_row_that_says_too_little_is_left_out_with_the_reason(change: dict[str, str], reason: str) -> None:
    read = read_table(table("mpt_fsdp"), [Row(7, {**MPT_ROW, **change})])
    assert not read.cases
    assert read.left_out[0].row == 7 and reason in read.left_out[0].reason


def test_nodes_share_their_cards() -> None:
    _, whole = Machines().of("a100-sxm-80gb", 16).levels
    _, half = Machines().of("a100-sxm-80gb", 16, cards=4).levels
    assert half.link.bandwidth_bytes_per_s == whole.link.bandwidth_bytes_per_s / 2


def test_what_the_package_alone_ships_is_never_fitted_on() -> None:
    shipped = [table for table in TABLES if table.shipped]
    assert {table.name for table in shipped} == {"korthikanti_steps", "torchtitan_further"}
    for table in shipped:
        read = read_table(table, rows_of(SHIPPED / table.file))
        assert read.cases and not read.left_out and not table.fitted
    names = {table.name for table in shipped}
    assert not names & {case.table for case in cases_on(SHIPPED, "a100-sxm-80gb")}
