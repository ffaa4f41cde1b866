"""Plans of one small model, each exported in float64 when it is first asked for, with the weights beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pytest
from safetensors.torch import save_file

from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.verify.variants import in_float64
from tests.support import zoo
from tests.support.planning import parallelize_alone


def exported_plans(
    place: pytest.TempPathFactory, model: str, layers: int, dropout: float, training: Training,
    plans: Mapping[str, Parallelism],
) -> Callable[[str], str]:  # fmt: skip
    """The folder of a plan by its name, on four ranks; weights.safetensors lies in it."""
    module, batch, _ = zoo.small(model, layers=layers, dropout=dropout)

    @functools.cache
    def exported(name: str) -> str:
        plan = parallelize_alone(module, "1x4 cpu", batch, training=training, parallelism=plans[name])
        found = Plan(in_float64(plan.record)).export(place.mktemp("plan") / "out")
        save_file({k: v.clone().contiguous() for k, v in module.state_dict().items()}, found / "weights.safetensors")
        return str(found)

    return exported
