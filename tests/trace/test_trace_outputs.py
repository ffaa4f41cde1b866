"""Which tensor of an output is the loss, and what is said where none is or several could be."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput

from autoplan.errors import InputsError
from autoplan.trace.outputs import loss_of_output, result_of_output

LOSS = torch.tensor(2.0, requires_grad=True)
LOGITS = torch.zeros(4, 8, requires_grad=True)
ACCURACY, COUNT = torch.tensor(0.5), torch.tensor(3)
Pair = namedtuple("Pair", "logits loss")


@dataclass
class Answer:
    scores: torch.Tensor
    cost: torch.Tensor | None


@pytest.mark.parametrize(
    "output",
    [
        LOSS,
        (LOGITS, LOSS),
        [LOSS, LOGITS],
        (LOGITS, LOSS, None),
        (LOSS, ACCURACY, COUNT),
        {"loss": LOSS, "penalty": LOSS * 2},
        {"logits": LOGITS, "objective": LOSS},
        {"losses": {"total": LOSS}, "logits": (LOGITS, ACCURACY)},
        CausalLMOutput(loss=LOSS, logits=LOGITS),
        Pair(LOGITS, LOSS),
        Answer(LOGITS, LOSS),
    ],
)
def test_a_loss_is_found(output: Any) -> None:
    assert loss_of_output(output, "Model") is LOSS


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ((LOSS, LOSS * 2), r"returns 2 floating scalars.*output\[0\], output\[1\].*name it"),
        ({"a": LOSS, "b": LOSS * 2}, r"output\['a'\], output\['b'\]"),
        ((ACCURACY, ACCURACY * 2), "returns 2 floating scalars"),
        ((LOGITS, None), r"returns no loss: output\[0\] \(4, 8\) and None, as where targets are missing"),
        (CausalLMOutput(logits=LOGITS), "its loss is None, as where targets are missing"),
        (Pair(LOGITS, None), "its loss is None"),
        (Answer(LOGITS, None), "returns no loss: output.scores"),
        ({"loss": LOGITS}, r"its loss has shape \(4, 8\), and what is minimised is one number"),
        (LOGITS, r"returns no loss but a tensor of shape \(4, 8\).*give loss_fn"),
        (COUNT, r"returns no loss but a tensor of shape \(\) and torch.int64"),
        (None, "returns no loss: no tensor"),
        ((COUNT, LOGITS), "returns no loss"),
    ],
)
def test_what_is_no_loss_is_said(output: Any, cause: str) -> None:
    with pytest.raises(InputsError, match=f"Model: .*{cause}"):
        loss_of_output(output, "Model")


def test_the_result_of_an_inference() -> None:
    assert result_of_output(CausalLMOutput(logits=LOGITS), "Model") is LOGITS
    with pytest.raises(InputsError, match=r"it returns 2 tensors, output\['loss'\], output\['logits'\]"):
        result_of_output(CausalLMOutput(loss=LOSS, logits=LOGITS), "Model")
    assert result_of_output((None, {"x": LOGITS}), "Model") is LOGITS
    with pytest.raises(InputsError, match="Model: it returns no tensor"):
        result_of_output({"x": 1}, "Model")
