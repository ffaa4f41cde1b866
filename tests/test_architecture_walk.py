"""docs/architecture.md walks one matmul; here is the plan that it walks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from autoplan import AutoplanError, Plan, cli, load
from autoplan.ir.typed_program import Compute, Move
from autoplan.rules.registry import rule_of
from autoplan.rules.strategies import axis_strategies

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "architecture.md").read_text()
NAME = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What its command exports."""
    line = next(line for line in DOCUMENT.splitlines() if line.startswith("autoplan plan "))
    command = shlex.split(line)[1:]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("walk"))
        assert cli.main(command) == 0
        return Path(cli.parser().parse_args(command).export).absolute()


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return load(folder)


def test_the_node_and_its_ways(plan: Plan) -> None:
    block = next(b for b in plan.record.model.blocks if b.name == "LlamaDecoderLayer")
    node = next(n for n in block.nodes if n.module == NAME)
    assert (node.name, node.op) == ("down_proj", "aten.linear.default")
    assert node.operands == ("mul_4", "mlp.down_proj.weight")
    rule = rule_of(node, block.types())
    assert f"```text\n{rule.spec}\n```" in DOCUMENT
    ways = axis_strategies(rule, [block.types()[name] for name in node.operands], [True, True])
    for way in ways:
        assert f"{', '.join(map(str, way.inputs))} -> {way.output}" in DOCUMENT
    listed = DOCUMENT[DOCUMENT.index("I, I -> I") :].split("```")[0]
    assert len(re.findall(r"->", listed)) == len(ways)


def test_the_lowered_lines(plan: Plan) -> None:
    lowered = plan.lowered
    block = next(b for b in lowered.blocks if b.name == "LlamaDecoderLayer")
    found = {s.value.name: s for s in block.body}
    product, moved = found["down_proj"], found["down_proj_reduced"]
    assert isinstance(product, Compute) and isinstance(moved, Move)
    assert str(product.value.layout.state("tp")) == "P" and str(moved.value.layout.state("tp")) == "I"
    assert str(product.value.layout.state("dp")) == "S(0)"
    assert product.value.local_shape == moved.value.local_shape == (4, 64, 128)
    (step,) = moved.collectives
    assert (step.op, step.axis, step.forward_bytes, step.backward) == ("all_reduce", "tp", 131072, "")
    stored = next(p for p in lowered.parameters if p.name == f"{NAME}.weight")
    assert str(stored.layout.state("tp")) == "S(1)" and stored.local_shape == (128, 128)
    assert stored.reduce_axes == ("dp",)


def test_the_lines_of_the_program(folder: Path) -> None:
    assert (folder / "train.py").is_file()
    program = (folder / "program.py").read_text()
    quoted = [
        " ".join(line.split())
        for line in DOCUMENT.splitlines()
        if line.startswith(("self.down_proj_weight", "down_proj = ", "down_proj_reduced = "))
    ]
    emitted = {" ".join(line.split()) for line in program.splitlines()}
    assert len(quoted) == 3 and set(quoted) <= emitted


def test_it_is_explained(plan: Plan) -> None:
    assert "Shard(2), Shard(1) -> Partial" in plan.explain(NAME)
    with pytest.raises(AutoplanError):
        plan.explain(f"{NAME}s")
