"""What people write of a module or its loss out of habit is answered with what to write."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

from autoplan.errors import InputsError, NotAModuleError
from autoplan.runtime.not_a_module import INSTEAD, StepLoss
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny


def asked(rank: int, world: int) -> tuple[list[str], list[bool], list[str], bool]:
    """Errors of a module's attributes, which of them a program seems to have, the errors of another name, of a call and
    of a loss's backward, and whether a step's loss is a step's."""
    spec = tiny.spec(dp=2, tp=2)
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        told = []
        for name in INSTEAD:
            with pytest.raises(NotAModuleError) as error:
                getattr(program, name)
            told.append(str(error.value))
        with pytest.raises(AttributeError) as unknown:
            program.trian()  # type: ignore[operator]
        (batch,) = tiny.batches(1)
        with pytest.raises(NotAModuleError) as called:
            program(batch)
        loss = program.step(batch)
        with pytest.raises(InputsError) as twice:
            loss.backward()
        kept = [hasattr(program, name) for name in INSTEAD]
        return told, kept, [str(unknown.value), str(called.value), str(twice.value)], type(loss) is StepLoss


def test_a_program_says_what_to_write_instead(pool: RankPool) -> None:
    told, kept, (unknown, called, twice), is_step = pool.run(asked)[0]
    assert not any(kept) and is_step
    by_name = dict(zip(INSTEAD, told, strict=True))
    assert by_name["train"].startswith("program.train: a program has no modes: ") and "evaluate" in by_name["train"]
    assert "program.state_dict()" in by_name["parameters"]
    assert by_name["zero_grad"].endswith("call program.optimizer.zero_grad().")
    assert unknown == "'Program' object has no attribute 'trian'"
    assert called.startswith("program(batch): ") and "program.step(batch), or program.evaluate(batch)" in called
    assert twice.startswith("loss.backward(): program.step(batch) has run the backward")
    assert twice.endswith("leave it out, and call program.optimizer.step().")


def test_a_loss_is_a_scalar_like_any_other() -> None:
    loss = torch.tensor(0.25, dtype=torch.float64).as_subclass(StepLoss)
    assert repr(loss) == repr(torch.tensor(0.25, dtype=torch.float64)) and f"{loss:.3f}" == "0.250"
    assert float(loss) == loss.item() == 0.25 and loss > 0.2
    made = [loss + 1, loss.detach(), loss.clone(), torch.stack([loss]), copy.deepcopy(loss)]
    made.append(pickle.loads(pickle.dumps(loss)))
    assert all(type(one) is Tensor for one in made) and float(made[-1]) == 0.25
    file = io.BytesIO()
    torch.save({"loss": loss}, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)["loss"]) is Tensor
