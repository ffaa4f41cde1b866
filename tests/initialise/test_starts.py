"""Training starts where the user's model does; ``python -m tests.starts`` prints it as a table."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

from autoplan.verify.local_ranks import RankPool
from tests.starts.models import MODELS
from tests.starts.run import seen
from tests.support.sampling import sampled

SLOW = ("timm-vit", "diffusers-unet", "convnext", "dit", "deepnorm", "state-space", "zero-resnet", "fourier")
NEEDS = {"timm-vit": "timm", "diffusers-unet": "diffusers"}
MODULE = ("nanogpt",)  # given as what it made; the others as what makes them
CASES = sampled(
    itertools.product(MODELS, ("function", "module")),
    [(name, "module" if name in MODULE else "function") for name in MODELS if name not in SLOW],
)


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_value_and_every_loss_is_that_of_one_device(pool: RankPool, tmp_path: Path, name: str, how: str) -> None:
    library = NEEDS.get(name)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    found = seen(name, how, pool, tmp_path / "plan")
    assert found.equal, found
