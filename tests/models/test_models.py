from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from autoplan.errors import InputsError
from autoplan.models.named import resolve_model
from autoplan.trace.initialise import given

FILE = """
import torch
from torch import nn

def make_model(width=4):
    return nn.Linear(width, 2)

def example_inputs(batch=8):
    return (torch.empty(batch, 4), torch.empty(batch, 2))

def loss_fn(output, target):
    return (output - target).pow(2).mean()

def broken():
    raise ValueError("no such width")

def not_a_model():
    return 3

def of_depth(depth):
    return nn.Linear(depth, 2)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "user_model.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama", "'llama': this names no model. write hf:llama of a Hugging Face model; or give hf:NAME"),
        ("nowhere.py:make_model", "nowhere.py: there is no such file"),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(InputsError) as error:
        resolve_model(text)
    assert str(error.value).startswith(said)


def test_a_file_gives_model_inputs_and_loss(file: Path) -> None:
    request = resolve_model(f"{file}:make_model", ["width=4"], batch=6)
    made = given(request.model)
    assert isinstance(made.module, torch.nn.Linear) and made.start.name == "make_model()" and made.start.compared
    assert isinstance(request.example_inputs, tuple) and request.example_inputs[0].shape == (6, 4)
    assert request.loss_fn is not None and request.loss_fn(torch.ones(2), torch.zeros(2)) == 1


@pytest.mark.parametrize(
    ("function", "batch", "seq", "said"),
    [
        ("broken", None, None, r"broken: ValueError: no such width \(.*user_model.py, line 15\)"),
        ("not_a_model", None, None, "not_a_model: it returns int. return a torch.nn.Module"),
        ("nothing", None, None, "nothing: the file has no 'nothing'. its functions are make_model, "),
        ("make_model", 4, 16, "--seq 16: .*example_inputs takes no seq"),
    ],
)
def test_a_mistake_in_a_file_is_named(
    file: Path, function: str, batch: int | None, seq: int | None, said: str
) -> None:
    with pytest.raises(InputsError, match=said):
        given(resolve_model(f"{file}:{function}", batch=batch, seq=seq).model)


def test_code_that_does_not_parse_or_wants_arguments_is_told_where_it_stands(file: Path) -> None:
    with pytest.raises(InputsError, match=r"argument: 'depth'\. give its further arguments defaults\."):
        given(resolve_model(f"{file}:of_depth").model)
    file.write_text("def broken(:")
    with pytest.raises(InputsError, match=r"SyntaxError: invalid syntax \(user_model\.py, line 1\)\. mend it there"):
        resolve_model(f"{file}:broken")


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputsError, match=r"transformers isn't installed\. pip install 'autoplan\[hf\]'"):
        resolve_model("hf:llama")
