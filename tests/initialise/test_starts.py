"""Training starts where the user's model does; ``python -m tests.starts`` prints it as a table."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoplan.verify.local_ranks import RankPool
from tests.starts.models import MODELS
from tests.starts.run import RANKS, seen

SLOW = ("diffusers-unet", "convnext", "dit", "deepnorm")
NEEDS = {"timm-vit": "timm", "diffusers-unet": "diffusers"}
CASES = [
    pytest.param(name, how, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in MODELS
    for how in ("function", "module")
]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(RANKS, timeout_s=240) as ranks:
        yield ranks


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_value_and_every_loss_is_that_of_one_device(pool: RankPool, tmp_path: Path, name: str, how: str) -> None:
    library = NEEDS.get(name)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    found = seen(name, how, pool, tmp_path / "plan")
    assert found.equal, found
