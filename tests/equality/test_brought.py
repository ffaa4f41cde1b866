"""Models as people bring them, planned for four ranks: equal to one device, whatever is asked for."""

from __future__ import annotations

import pytest

from autoplan.options import Parallelism, Training
from tests.support import brought_buffers as _buffers  # noqa: F401  adds its models
from tests.support import brought_masks as _masks  # noqa: F401  adds its models
from tests.support import brought_parts as _parts  # noqa: F401  likewise
from tests.support.brought import MODELS
from tests.support.planning import parallelize_alone

UNDER: dict[str, str | Parallelism] = {"auto": "auto", "dp": "ddp", "tp": Parallelism(tp=4)}

SLOW = (
    "gru", "lstm", "siglip", "barlow", "graph_with_loops", "graph_with_attention", "listed_tensors", "masked_mse",
    "old_weight_norm", "torch_encoder", "pictured", "assigned_rows", "mixup", "simclr", "lora", "averaged_layers",
    "moving_old_spectral_norm", "speech_by_mask", "masked_mean", "masked", "frozen_spectral_norm", "new_weight_norm",
    "graph_laplacian", "normaliser", "centred",
)
"""Loops that are written out, and those of which another here has nearly the same operators."""


def check(name: str, under: str, ranks: int = 4) -> None:
    module, batch, loss_fn = MODELS[name]()
    asked = {"loss_fn": loss_fn, "training": Training(learning_rate=1e-3), "parallelism": UNDER[under]}
    plan = parallelize_alone(module, f"1x{ranks} cpu", batch, effort="fast", **asked)
    if under == "dp":
        assert plan.record.chosen.mesh.size("dp") == ranks
    assert plan.verify().passed


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS])
@pytest.mark.usefixtures("verified_in_pool")
def test_equal_under_data_parallelism(name: str) -> None:
    check(name, "dp", ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("under", UNDER)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("verified_in_pool")
def test_equal_under_others(name: str, under: str) -> None:
    check(name, under)
