"""A table of one's own: lines as cases, and what is wrong with a line said so that it can be mended."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cost_models.hardware import read_fabric
from tests.bench.closed_form.__main__ import main
from tests.bench.closed_form.document import OWN_TABLE
from tests.bench.closed_form.own_table.columns import OwnTableError, read_own

HEADER = "hidden,layers,heads,seq_len,device"
LINE = "1024,4,8,512,a100-sxm-80gb"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_line_becomes_the_model_the_recipe_and_the_machine(tmp_path: Path) -> None:
    columns = f"{HEADER},nodes,devices_per_node,nics_per_node,tensor,pipeline,micro_batch,global_batch,gated,zero,norm"
    path = table(tmp_path, f"{columns},measured_s", f"{LINE},2,8,4,4,2,2,16,yes,0,rms,1.5")
    (case,) = read_own(path)
    assert (case.model.hidden, case.model.sequence, case.model.gated, case.model.norm) == (1024, 512, True, "rms")
    recipe = case.recipe
    assert (recipe.tensor, recipe.data, recipe.pipeline, recipe.microbatches, recipe.zero) == (4, 2, 2, 4, 0)
    assert case.topology.devices == 16 and case.measured_s == 1.5
    whole = read_own(table(tmp_path, f"{HEADER},devices", f"{LINE},16"))[0].topology.levels[1].link
    assert case.topology.levels[1].link.bandwidth_bytes_per_s == whole.bandwidth_bytes_per_s / 2


def test_fabrics_are_chosen_by_name(tmp_path: Path) -> None:
    path = table(tmp_path, f"{HEADER},devices,network,node_link", f"{LINE},16,ethernet-25g,nvlink2")
    node, cluster = read_own(path)[0].topology.levels
    assert (node.link, cluster.link) == (read_fabric("nvlink2"), read_fabric("ethernet-25g"))
    with pytest.raises(OwnTableError, match="ether: is not a known fabric"):
        read_own(table(tmp_path, f"{HEADER},devices,network", f"{LINE},16,ether"))


def test_what_is_left_out_has_defaults(tmp_path: Path) -> None:
    (case,) = read_own(table(tmp_path, HEADER, LINE))
    assert case.recipe.devices == 1 and math.isnan(case.measured_s) and case.model.vocabulary == 50304
    rate = read_own(table(tmp_path, f"{HEADER},devices,tokens_per_s_per_device", f"{LINE},4,1024"))[0]
    assert rate.recipe.data == 4 and rate.measured_s == 4 * 512 / (1024 * 4)


@pytest.mark.parametrize(
    ("columns", "cells", "said"),
    [
        ("tensr", "2", "column 'tensr' that isn't known. Nearest is tensor"),
        ("tensor", "two", "line 1: tensor is 'two'. Give a whole number"),
        ("tensor", "0", "tensor is '0'"),
        ("measured_s", "-3", "measured_s is -3. Give a number above 0"),
        ("recompute", "some", "Give one of none, selective, operators, full"),
        ("precision", "half", "Give one of fp64"),
        ("zero", "7", "zero is '7'. Give one of 0, 1, 2, 3"),
        ("offload", "disk", "Give one of none, optimizer"),
        ("gated", "perhaps", "Give true or false"),
        ("tensor,devices", "3,8", "8 doesn't divide by 3"),
        ("tensor,data,devices", "2,2,8", "are 4 ranks on 8 devices"),
        ("nodes,devices_per_node,devices", "2,8,8", "aren't 8 devices"),
        ("global_batch,micro_batch", "7,2", "7 doesn't divide by 2"),
        ("global_batch,microbatches", "7,2", "not a batch of 7"),
        ("tensor", "2,3", "more cells than columns"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, columns: str, cells: str, said: str) -> None:
    with pytest.raises(OwnTableError, match=said.replace("(", "[(]")):
        read_own(table(tmp_path, f"{HEADER},{columns}", f"{LINE},{cells}"))


def test_an_unknown_device_and_a_missing_column_are_errors(tmp_path: Path) -> None:
    with pytest.raises(OwnTableError, match="a100: is not a known device"):
        read_own(table(tmp_path, HEADER, "1024,4,8,512,a100"))
    with pytest.raises(OwnTableError, match="has no column heads"):
        read_own(table(tmp_path, "hidden,layers", "1,1"))
    with pytest.raises(OwnTableError, match="states no heads"):
        read_own(table(tmp_path, HEADER, "1024,4,,512,a100-sxm-80gb"))
    with pytest.raises(OwnTableError, match="can't be read"):
        read_own(tmp_path / "absent.csv")


def test_a_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(OwnTableError, match=r"own\.csv: is no CSV in UTF-8"):
        read_own(path)


def test_the_command_prints_predictions_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, f"{HEADER},label,measured_s", f"{LINE},here,0.05", f"{LINE},there,")
    assert main(["--table", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "here" in printed and "there" in printed and "1 measured on a100-sxm-80gb: mean" in printed
    assert main(["--table", str(table(tmp_path, HEADER, "1024,4,8,512,abacus"))]) == 1
    assert "abacus" in capsys.readouterr().err


def test_the_document_s_example_table_is_read(tmp_path: Path) -> None:
    assert [case.label for case in read_own(table(tmp_path, OWN_TABLE))] == ["7B on one node", "7B on four"]
