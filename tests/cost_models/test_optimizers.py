"""What an optimizer keeps, against the states of torch's own after a step."""

from __future__ import annotations

import pytest
import torch

from cost_models.optimizers import OPTIMIZERS, update_bytes

SHAPE = (6, 10)
TORCHS: dict[str, tuple[str, dict]] = {
    "sgd": ("SGD", {}), "sgd-momentum": ("SGD", {"momentum": 0.9}), "asgd": ("ASGD", {}), "muon": ("Muon", {}),
    "adagrad": ("Adagrad", {}), "rmsprop": ("RMSprop", {}), "adam": ("Adam", {}), "adamw": ("AdamW", {}),
    "nadam": ("NAdam", {}), "radam": ("RAdam", {}), "adamax": ("Adamax", {}), "rprop": ("Rprop", {}),
    "adadelta": ("Adadelta", {}), "amsgrad": ("AdamW", {"amsgrad": True}), "adafactor": ("Adafactor", {}),
}  # fmt: skip


def kept(name: str) -> int:
    """Elements of state for a matrix of ``SHAPE``, scalars left out."""
    kind, options = TORCHS[name]
    weight = torch.nn.Parameter(torch.ones(SHAPE))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    weight.grad = torch.ones(SHAPE)
    optimizer.step()
    states = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() for value in states if value.numel() > 1)


@pytest.mark.parametrize("name", TORCHS)
def test_torch_keeps_as_many_elements(name: str) -> None:
    state, (rows, columns) = OPTIMIZERS[name], SHAPE
    assert kept(name) == state.copies * rows * columns + state.factored * (rows + columns) + state.rows * rows


def test_an_update_one_by_one_holds_two_copies_of_the_largest() -> None:
    assert update_bytes(1000, 300, together=True) == 1000
    assert update_bytes(1000, 300, together=False) == 600
