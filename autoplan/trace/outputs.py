"""Which tensor of a model's output is its loss, or its result."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from autoplan.errors import InputsError

Named = tuple[str, torch.Tensor]
LOSS = "loss"


def loss_of_output(output: Any, model: str) -> torch.Tensor:
    """The loss of what a model returns: the output itself, what is named "loss", or the only floating scalar that
    carries a gradient, as in (logits, loss).

    InputsError, naming ``model``, where there is none or where several could be it.
    """
    if isinstance(output, torch.Tensor):
        if output.ndim or not output.is_floating_point():
            raise no_loss(model, f"it returns no loss but a tensor of shape {tuple(output.shape)} and {output.dtype}")
        return output
    named = field_of(output, LOSS)
    if isinstance(named, torch.Tensor):
        if named.ndim:
            raise no_loss(model, f"its loss has shape {tuple(named.shape)}, and what is minimised is one number")
        return named
    if hasattr(output, LOSS) or (isinstance(output, Mapping) and LOSS in output):
        raise no_loss(model, "it returns no loss: its loss is None, as where targets are missing")
    return only_scalar(output, model)


def only_scalar(output: Any, model: str) -> torch.Tensor:
    tensors = list(tensors_of(output))
    scalars = [(name, t) for name, t in tensors if t.ndim == 0 and t.is_floating_point()]
    trained = [(name, t) for name, t in scalars if t.requires_grad] or scalars
    if len(trained) > 1:
        names = ", ".join(name for name, _ in trained)
        raise InputsError(
            model,
            f"it returns {len(trained)} floating scalars, and each could be the loss: {names}",
            "name it: return a dict with 'loss', or give loss_fn=(model_output, *targets) -> scalar",
        )
    if not trained:
        lacking = " and None, as where targets are missing" if any(part is None for part in parts_of(output)) else ""
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors)
        raise no_loss(model, f"it returns no loss: {shapes or 'no tensor'}{lacking}")
    return trained[0][1]


def no_loss(model: str, cause: str) -> InputsError:
    return InputsError(
        model,
        cause,
        "give loss_fn=(model_output, *targets) -> scalar, or inputs from which the model computes its loss "
        "(labels, for a Hugging Face model)",
    )


def result_of_output(output: Any, model: str) -> torch.Tensor:
    """What a model gives at inference: the only tensor of its output. InputsError where there is none, or several."""
    found = list(tensors_of(output))
    if not found:
        raise InputsError(model, "it returns no tensor", "return what the model computes")
    if len(found) > 1:
        raise InputsError(
            model,
            f"it returns {len(found)} tensors, {', '.join(name for name, _ in found)}, and a plan of the forward alone "
            "has one",
            "give loss_fn=(model_output) -> tensor, which picks one or joins them, with training=Inference()",
        )
    return found[0][1]


def field_of(output: Any, name: str) -> Any:
    """A field of a mapping, a ModelOutput, a dataclass or a named tuple; None where it has none."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def parts_of(output: Any) -> list[Any]:
    return [part for _, part in named_parts(output)]


def named_parts(output: Any) -> list[tuple[str, Any]]:
    """What an output is made of, one level down."""
    if isinstance(output, Mapping):
        return [(f"[{key!r}]", value) for key, value in output.items()]
    if is_dataclass(output) and not isinstance(output, type):
        return [(f".{f.name}", getattr(output, f.name)) for f in fields(output)]
    if isinstance(output, (tuple, list)):
        return [(f"[{index}]", value) for index, value in enumerate(output)]
    return []


def tensors_of(output: Any, path: str = "output") -> Iterator[Named]:
    """Every tensor of an output, with where it is: ``output[1]``, ``output['losses']['total']``."""
    if isinstance(output, torch.Tensor):
        yield path, output
    for name, part in named_parts(output):
        yield from tensors_of(part, f"{path}{name}")
