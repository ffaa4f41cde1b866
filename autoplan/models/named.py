"""The model that ``--model`` names, with the inputs of one step where it says them."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from torch import nn

from autoplan.arguments.keywords import nearest
from autoplan.arguments.values import parse_value
from autoplan.errors import InputsError
from autoplan.models.inputs import users_own

FORMS = "give hf:NAME, as in hf:llama, a folder that save_pretrained wrote, or path/to/file.py:FUNCTION"


@dataclass(frozen=True)
class Request:
    """What to plan: the model or what makes it, one step's inputs (None: left to the planner), the loss where the model
    has none.

    weights  the folder of the weights that training is to start from, where the model was named by one
    notes    what a user should know of how the text was understood, a line each
    """

    model: nn.Module | Callable[[], nn.Module]
    example_inputs: object = None
    loss_fn: Callable | None = None
    weights: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Factory:
    """A function of a user's file, with its arguments; what it raises is an InputsError that names the line."""

    where: str
    make: partial

    @property
    def __name__(self) -> str:
        return getattr(self.make.func, "__name__", type(self.make.func).__name__)

    def __call__(self) -> nn.Module:
        model = users_own(self.make, self.where)
        if not isinstance(model, nn.Module):
            raise InputsError(self.where, f"it returns {type(model).__name__}", "return a torch.nn.Module")
        return model


def resolve_model(text: str, settings: Sequence[str] = (), batch: int | None = None, seq: int | None = None) -> Request:
    """The model of a command line.

    text      "hf:llama", "hf:llama-3-70b", "hf:organisation/name" of the hub, a folder that save_pretrained wrote, or
              "path/to/file.py:make_model"
    settings  "KEY=VALUE" of a Hugging Face configuration, or keyword arguments of make_model
    batch     rows of one step, over all devices
    seq       tokens in a row
    Raises InputsError, naming what is wrong with the text, the settings or the file.
    """
    for name, size in (("--batch", batch), ("--seq", seq)):
        if size is not None and size < 1:
            raise InputsError(f"{name} {size}", "a size is at least 1", f"give {name} a whole number above 0")
    if seq is not None and batch is None:
        raise InputsError(f"--seq {seq}", "a sequence without a batch says no shape", "give --batch too")
    path, colon, function = text.rpartition(":")
    if text.startswith("hf:") or (Path(text).is_dir() and not path.endswith(".py")):
        return from_huggingface(text.removeprefix("hf:"), settings, batch, seq)
    if not colon or not path.endswith(".py") or not function:
        raise InputsError(repr(text), "this names no model", near_form(text))
    return from_file(Path(path), function, settings, batch, seq)


def near_form(text: str) -> str:
    """What to give in place of a text that names no model."""
    path = Path(text.rstrip(":"))
    if path.suffix == ".py" and path.is_file():
        return f"name the function that makes it: {path}:make_model"
    if path.name == "config.json" and path.is_file():
        return f"give its folder: {path.parent}"
    if text and not path.suffix and re.fullmatch(r"[\w./-]+", text):
        return f"write hf:{text} of a Hugging Face model; or {FORMS}"
    return FORMS


def from_huggingface(name: str, settings: Sequence[str], batch: int | None, seq: int | None) -> Request:
    """A model of transformers by its type, a preset, the hub's name, or the folder that it was saved to."""
    saved, by_name = huggingface("saved"), huggingface("huggingface")
    exported = (Path(name) / "plan.json").is_file() and by_name.is_known(name)  # a plan of this model
    folder = None if exported else saved.saved_folder(name)
    if folder is None:
        model, inputs = by_name.build(name, settings, batch, seq)
        known = by_name.known_name(name)
        note = f"hf:{name} is planned as hf:{known}; nothing is downloaded, give its weights to train.py with --weights"
        return Request(model, inputs, notes=(note,) if known != name else ())
    model, inputs, weights = saved.build_saved(folder, settings, batch, seq)
    note = f"weights: training starts from {weights}; train.py --weights takes others"
    if weights is None:
        note = f"weights: {folder} holds no safetensors, and its other files aren't read"
    return Request(model, inputs, weights=weights, notes=(note,))


def huggingface(module: str) -> ModuleType:
    """A module of this package that needs transformers; InputsError where that isn't installed."""
    try:
        return importlib.import_module(f"autoplan.models.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("transformers", "huggingface_hub"):
            raise
        raise InputsError("hf:", "transformers isn't installed", "pip install 'autoplan[hf]'") from None


def from_file(path: Path, function: str, settings: Sequence[str], batch: int | None, seq: int | None) -> Request:
    """``function`` of a file, which makes the model; the file may define example_inputs (a value, or a function of any
    of ``batch`` and ``seq``) and loss_fn."""
    module = import_file(path)
    make = getattr(module, function, None)
    if make is None:
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        near = nearest(function, known)
        remedy = f"its functions are {', '.join(known)}" if known else "define one that returns the model"
        remedy = f"did you mean {' or '.join(near)}?" if near else remedy
        raise InputsError(f"{path}:{function}", f"the file has no {function!r}", remedy)
    if not callable(make):
        kind = type(make).__name__
        raise InputsError(f"{path}:{function}", f"it is of type {kind}", "name the function that makes the model")
    keywords = dict(keyword(text) for text in settings)
    model = make
    if not isinstance(make, nn.Module):
        model = Factory(f"{path}:{function}", partial(make, **keywords))
    inputs = getattr(module, "example_inputs", None)
    if callable(inputs):
        inputs = call_inputs(inputs, path, batch, seq)
    elif batch is not None:
        raise InputsError(
            f"--batch {batch}", f"{path} has no function example_inputs that could make it", "define "
            "example_inputs(batch), returning the tensors of one step",
        )  # fmt: skip
    return Request(model, inputs, getattr(module, "loss_fn", None))


def call_inputs(function: Callable, path: Path, batch: int | None, seq: int | None) -> object:
    """example_inputs() of a file, with those of batch and seq that it takes and that were given."""
    takes = inspect.signature(function).parameters
    given = {name: size for name, size in (("batch", batch), ("seq", seq)) if size is not None}
    refused = [name for name in given if name not in takes]
    if refused:
        raise InputsError(f"--{refused[0]} {given[refused[0]]}", f"{path}:example_inputs takes no {refused[0]}",
                          f"give it a parameter {refused[0]}")  # fmt: skip
    return users_own(lambda: function(**given), f"{path}:example_inputs")


def keyword(text: str) -> tuple[str, object]:
    """"width=64" -> ("width", 64)."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputsError(repr(text), "--config takes KEY=VALUE", "write for example width=64")
    return key, parse_value(text, value, None, "--config")


def import_file(path: Path) -> ModuleType:
    """A file as a module; what stands beside it can be imported by it."""
    if not path.is_file():
        raise InputsError(path, "there is no such file", FORMS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        users_own(lambda: spec.loader.exec_module(module), str(path))  # type: ignore[union-attr]
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
