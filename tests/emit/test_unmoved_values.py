"""Values that are another print no line: moves between the batch's states where one rank has all of the batch, and
reshapes for a mixture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autoplan.options import Parallelism
from autoplan.rehearsal.pricing.priced_operators import places_of
from tests.support import zoo
from tests.support.planning import parallelize_unproved


@pytest.mark.parametrize(("rows", "pins"), [(1, {"tp": 2}), (8, {"dp": 2})])
def test_a_program_without_exchanges_has_no_such_lines(rows: int, pins: dict[str, int], tmp_path: Path) -> None:
    """One row's mixture moves its sequence in front of its router."""
    module, batch, loss_fn = zoo.small("mixtral")
    batch = {name: value[:rows].clone() for name, value in batch.items()}
    pinned = Parallelism(**{"dp": 1, "tp": 1, "pp": 1, **pins})
    plan = parallelize_unproved(module, "1x2 cpu", batch, loss_fn=loss_fn, parallelism=pinned)
    moves = [n for block in plan.record.model.blocks for n in block.nodes if n.op == "autoplan.batch_move"]
    assert moves or rows > 1
    text = (plan.export(tmp_path / "out") / "program.py").read_text()
    assert "batch_move" not in text
    assert places_of(text, plan.lowered), "each line is known for its statement"


def test_a_mixture_reads_indices_and_scores_as_its_router_has_them(tmp_path: Path) -> None:
    """A router works on [tokens, experts]; the mixture takes rows, so nothing is reshaped for it."""
    module, batch, loss_fn = zoo.small("mixtral")
    pinned = Parallelism(dp=2, ep=2, tp=1, pp=1)
    plan = parallelize_unproved(module, "1x2 cpu", batch, loss_fn=loss_fn, parallelism=pinned)
    text = (plan.export(tmp_path / "out") / "program.py").read_text()
    (call,) = [node for node in ast.walk(ast.parse(text)) if called(node) == "routed_experts"]
    index, scores = (ast.unparse(argument) for argument in call.args[1:3])
    lines = {each.targets[0].id: each.value for each in ast.walk(ast.parse(text)) if is_local(each)}
    assert called(lines[index]) == "top_indices" and called(lines[scores]) != "reshape"
    assert places_of(text, plan.lowered), "each line is known for its statement"


def called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def is_local(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
