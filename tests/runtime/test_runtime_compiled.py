"""Segments are one graph each, collectives inside, and compute what they compute eagerly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import autoplan
from autoplan.options import Parallelism
from autoplan.runtime.parallel.compiled import compile_segments
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.planning import parallelize_unproved
from tests.support.sampling import slow


def step(rank: int, world: int, folder: str, weights: str, compiled: bool) -> tuple[float, dict[str, Tensor]]:
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    if compiled:
        compile_segments(program.stages.modules, backend="aot_eager")
    loss = program.step(zoo.batch_of("llama"))
    return float(loss), program.full_grads()


@pytest.mark.parametrize("pinned", [dict(dp=1, tp=2), slow(dict(dp=2, tp=1, zero=3))], ids=str)
@pytest.mark.usefixtures("compiler")
def test_a_compiled_step_is_the_eager_step(pinned: dict[str, int], tmp_path: Path) -> None:
    module, batch, _ = zoo.small("llama", layers=2)  # of one block, which each of them compiles
    plan = parallelize_unproved(module, "1x2 cpu", batch, parallelism=Parallelism(**pinned, pp=1))  # type: ignore
    folder, weights = plan.export(tmp_path / "out"), tmp_path / "weights.safetensors"
    save_file({name: value.clone().contiguous() for name, value in module.state_dict().items()}, weights)
    with RankPool(2, timeout_s=240) as pool:
        (eager, wanted), (compiled, found) = (
            pool.run(step, str(folder), str(weights), flag)[0] for flag in (False, True)
        )
    assert compiled == pytest.approx(eager, rel=1e-6)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
