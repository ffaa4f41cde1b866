"""What is fed: the global batch of one optimizer step, given by the user or made from the model's configuration."""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from autoplan.arguments.keywords import shown
from autoplan.errors import AutoplanError, InputsError

Inputs = dict[str, torch.Tensor] | tuple[torch.Tensor, ...]
LONGEST = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
ONE_LABEL_A_ROW = ("SequenceClassification", "ImageClassification", "MultipleChoice", "NextSentencePrediction")
PIXELS = 224  # of a side, as networks for ImageNet are trained on
REMEDY = "pass example_inputs: a tuple or dict of tensors, the global batch of one optimizer step (meta tensors do)"


def resolve_inputs(model: nn.Module, example_inputs: object, devices: int) -> Inputs:
    """The batch: what was given, else ``model.example_inputs`` (a value or a callable), else, for a Hugging Face
    model, its dummy inputs widened to the configured sequence and to one row a device.

    Raises InputsError, which says what to pass, where there is none of these or what is given isn't tensors.
    """
    given = example_inputs
    if given is None:
        given = getattr(model, "example_inputs", None)
        given = given() if callable(given) and not isinstance(given, Mapping) else given
    if given is not None:
        return checked(given)
    if is_configured(model):
        return hf_inputs(model, devices)
    raise InputsError("example_inputs=None", f"{type(model).__name__} has no example_inputs of its own", REMEDY)


def checked(given: object) -> Inputs:
    """The batch as a dict or a tuple of tensors, each with rows."""
    if isinstance(given, torch.Tensor):
        given = (given,)
    if not isinstance(given, (Mapping, Sequence)) or isinstance(given, str) or not given:
        remedy = f"convert it: torch.as_tensor(…); {REMEDY}" if hasattr(given, "__array__") else REMEDY
        raise InputsError(f"example_inputs of type {type(given).__name__}", "they hold no tensors", remedy)
    if isinstance(given, Mapping) and not all(isinstance(name, str) for name in given):
        raise InputsError(f"example_inputs of {shown(list(given))}", "inputs have names that are texts", REMEDY)
    items = given.items() if isinstance(given, Mapping) else enumerate(given)
    for name, value in items:
        if not isinstance(value, torch.Tensor):
            remedy = f"convert it: torch.as_tensor(…); {REMEDY}" if hasattr(value, "__array__") else REMEDY
            raise InputsError(f"example_inputs[{name!r}] = {shown(value)}", "it is not a tensor", remedy)
        if value.layout != torch.strided or value.is_quantized:
            raise InputsError(f"example_inputs[{name!r}]", "it is sparse or quantized", "give it as a dense tensor")
        if value.ndim == 0 or 0 in value.shape:
            raise InputsError(f"example_inputs[{name!r}]", f"its shape {tuple(value.shape)} has no rows", REMEDY)
    return dict(given) if isinstance(given, Mapping) else tuple(given)


def is_configured(model: Any) -> bool:
    """Whether this is a Hugging Face model: it has a configuration and dummy inputs."""
    return hasattr(type(model), "dummy_inputs") and hasattr(getattr(model, "config", None), "to_dict")


def hf_inputs(model: Any, batch: int, seq: int | None = None) -> dict[str, torch.Tensor]:
    """Meta tensors for a Hugging Face model: ``batch`` rows, ``seq`` tokens each (None: as many as the configuration
    allows), with labels where forward takes them."""
    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    if main == "pixel_values":
        inputs = {main: image(model.config, batch)}
    elif main == "input_ids":
        inputs = {main: tokens(batch, seq or longest(model.config))}
    else:
        raise InputsError(main, f"{type(model).__name__} takes an input of its own kind", REMEDY)
    if "labels" in accepted:
        inputs["labels"] = labels(model, inputs[main])
    elif "start_positions" in accepted:
        inputs |= {name: tokens(batch) for name in ("start_positions", "end_positions")}
    if "decoder_input_ids" in accepted and "labels" not in accepted:
        inputs["decoder_input_ids"] = tokens(*inputs[main].shape)
    return inputs


def longest(config: Any) -> int:
    """The longest sequence that a configuration allows."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in LONGEST:
        size = getattr(text, name, None)
        if isinstance(size, int) and size > 0:
            return size
    raise InputsError(type(config).__name__, "it names no longest sequence", REMEDY)


def tokens(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def image(config: Any, batch: int) -> torch.Tensor:
    """Pictures of the configured size, [batch, channels, height, width]; of ImageNet's where none is configured, as for
    a convolutional network, which takes any."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or PIXELS
    height, width = (size, size) if isinstance(size, int) else size
    return torch.empty(batch, vision.num_channels, height, width, device="meta")


def labels(model: Any, main: torch.Tensor) -> torch.Tensor:
    """One label for each row where the class is named for classification, else one for each token."""
    single = main.ndim != 2 or any(word in type(model).__name__ for word in ONE_LABEL_A_ROW)
    return tokens(main.shape[0]) if single else tokens(*main.shape)


def users_own(function: Callable[[], object], what: str) -> object:
    """Runs the user's code; what it raises becomes an InputsError that names the line."""
    try:
        return function()
    except AutoplanError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit, too: of autoplan's own end nothing would be told
        said, last = f"{type(error).__name__}: {error}", traceback.extract_tb(error.__traceback__)[-1]
        if last.filename == __file__:  # the call itself: its arguments aren't those that are given
            raise InputsError(what, said, "give its further arguments defaults") from error
        here = isinstance(error, SyntaxError)  # which says itself where
        place = "" if here else f" ({last.filename}, line {last.lineno})"
        raise InputsError(what, f"{said}{place}", "mend it there") from error
