"""A move between the batch's states prints no line where one rank has all of the batch."""

from __future__ import annotations

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
