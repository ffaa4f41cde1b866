"""A run of the tiny program, whole or taken up from a checkpoint, beside a rule that one process follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from torch import Tensor

from autoplan.runtime.program import Program
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import Simulated

Trained = tuple[list[float], Mapping[str, Tensor]]
"""(the losses, the parameters at the end)"""


def trained(
    make: Callable[[], Program], steps: int, folder: str = "", at: int = 0, then: Callable[[], Program] | None = None
) -> Trained:
    """A run; with a folder, one that is saved after step ``at`` and gone on with by a new program, ``then``'s."""
    program = make()
    program.load_weights(tiny.reference().state_dict())
    losses = []
    for step, batch in enumerate(tiny.batches(steps), start=1):
        losses.append(program.step(batch).item())
        program.optimizer.step()
        if step == at:
            program.save_checkpoint(folder)
            program = (then or make)()
            program.load_checkpoint(folder)
            assert program.steps == at
    return losses, dict(program.full_state_dict())


def assert_same(found: Trained, wanted: Simulated, within: float) -> None:
    assert found[0] == pytest.approx(wanted.losses, rel=within)
    for name, value in wanted.parameters.items():
        assert float((found[1][name] - value).norm()) <= within * float(value.norm()), name
