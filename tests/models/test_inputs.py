"""Where the batch comes from when it isn't given, and what is said when it can't come from anywhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoplan.errors import InputsError
from autoplan.models.inputs import hf_inputs, resolve_inputs
from tests.support import zoo


def test_given_inputs_come_first() -> None:
    x = torch.zeros(4, 8)
    assert resolve_inputs(nn.Linear(8, 8), x, 2) == (x,)
    assert resolve_inputs(nn.Linear(8, 8), [x, x], 2) == (x, x)
    assert resolve_inputs(nn.Linear(8, 8), {"input": x}, 2) == {"input": x}


def test_the_models_own_example_inputs() -> None:
    model = nn.Linear(8, 8)
    x = torch.zeros(4, 8)
    model.example_inputs = lambda: (x,)  # type: ignore[assignment]
    assert resolve_inputs(model, None, 2) == (x,)
    model.example_inputs = {"input": x}  # type: ignore[assignment]
    assert resolve_inputs(model, None, 2) == {"input": x}


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("llama", {"input_ids": (32, 64), "labels": (32, 64)}),
        ("gpt2", {"input_ids": (32, 64), "labels": (32, 64)}),
        ("bert", {"input_ids": (32, 64), "labels": (32, 64)}),
        ("vit", {"pixel_values": (32, 3, 32, 32), "labels": (32,)}),
    ],
)
def test_hugging_face_inputs_follow_the_configuration(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    inputs = resolve_inputs(zoo.small(name, device="meta")[0], None, 32)
    assert isinstance(inputs, dict)
    assert {key: tuple(value.shape) for key, value in inputs.items()} == shapes
    assert all(value.is_meta for value in inputs.values())


def test_rows_and_sequence_can_be_asked_for() -> None:
    inputs = hf_inputs(zoo.small("llama", device="meta")[0], 6, 16)
    assert inputs["input_ids"].shape == inputs["labels"].shape == (6, 16)
    assert inputs["input_ids"] is not inputs["labels"]


@pytest.mark.parametrize("given", [None, "text", {}, (), (1, 2), {"x": 3}, torch.zeros(()), torch.zeros(0, 3)])
def test_what_is_no_batch_says_what_to_pass(given: object) -> None:
    with pytest.raises(InputsError, match="pass example_inputs: a tuple or dict of tensors"):
        resolve_inputs(nn.Linear(8, 8), given, 2)
