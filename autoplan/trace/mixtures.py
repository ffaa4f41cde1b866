"""Mixtures of experts as transformers writes them: each experts module calls one operator during the trace.

transformers looks the experts' implementation up by name, as it does with attention. The one registered here calls
``autoplan::experts``; what the module computes between its products is read off the module itself, by tracing it, so
that gates of any form (clamped, scaled, interleaved) come out as the text that the operator takes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import autoplan.ops.experts  # noqa: F401  registers the operator
from autoplan.ops.experts import FUNCTIONS

NAME = "autoplan"
WIDTH, ROWS = 4, 3  # of the sample that a gate is traced on
Text = str | tuple[str, ...]


def prepare(module: nn.Module) -> bool:
    """Makes an experts module ready for the trace; whether it is one that the operator can stand for.

    Those are the modules of transformers' ``use_experts_implementation``, which say how their weights lie.
    """
    if not hasattr(module, "_apply_gate") or not hasattr(module, "is_transposed"):
        return False
    found = None if getattr(module, "has_post_expert_norm", False) else activation_of(module)
    if found is not None:
        module._autoplan_activation = found  # type: ignore[assignment]  # of our own copy
    return found is not None


def activation_of(module: Any) -> str | None:
    """The text of what runs between an expert's products: over ``gate`` and ``up`` where the fused weight holds one
    after the other, else over ``x``; None where it is made of more than ``FUNCTIONS``."""
    function = module._apply_gate if module.has_gate else module.act_fn
    return activation_text(function, 1, 2 if module.has_gate else 1)[0]


def activation_text(function: Callable[..., torch.Tensor], products: int, fused: int) -> tuple[str | None, int]:
    """The text of a function of one product or of two, and into how many parts a product's weight is taken apart.

    fused  how often the product's width is that of the function's value
    """
    if products == 2 and fused == 1:
        return text_of(function, ("gate", "up")), 1
    if products > 1 or fused not in (1, 2):
        return None, 1
    if fused == 1:
        return text_of(function, ("x",)), 1
    apart = text_of(lambda gate, up: function(torch.cat([gate, up], -1)), ("gate", "up"))
    if apart is not None:
        return apart, 2
    return (text_of(function, ("x",)) if is_local(function) else None), 1


def is_local(gate: Callable) -> bool:
    """Whether half of what a gate reads gives half of its result, so that its inner dim can be split. To rounding:
    kernels of a CPU round the last elements of a row, which fill no vector, otherwise than the rest."""
    x = torch.linspace(-3, 3, ROWS * 4 * WIDTH).reshape(ROWS, 4 * WIDTH)
    return torch.allclose(gate(x)[:, :WIDTH], gate(x[:, : 2 * WIDTH]))


def text_of(function: Callable, names: Sequence[str]) -> str | None:
    """A function of [rows, width] tensors as a text of calls; None where it has none."""
    samples = [torch.linspace(-3, 3, ROWS * WIDTH * (2 if len(names) == 1 else 1)).reshape(ROWS, -1) for _ in names]
    graph = make_fx(lambda *tensors: function(*tensors))(*samples).graph  # a bound method has an operand too many
    texts: dict[fx.Node, Text | None] = {}
    entering = iter(names)
    for node in graph.nodes:
        if node.op == "placeholder":
            texts[node] = next(entering)
        elif node.op == "output":
            result = text_in(node.args[0], texts)
            return result if isinstance(result, str) else None
        else:
            texts[node] = call_text(node, texts) if node.op == "call_function" else None
    return None


def call_text(node: fx.Node, texts: dict[fx.Node, Text | None]) -> Text | None:
    """One call as text. What is put together to be taken apart again is a tuple of texts meanwhile."""
    name = str(node.target).split(".")[-2] if "." in str(node.target) else node.target.__name__  # type: ignore[union-attr]
    if name == "cat":
        parts = node.args[0]
        assert isinstance(parts, (list, tuple))
        return tuple(str(text_in(part, texts)) for part in parts)
    source = text_in(node.args[0], texts)
    if isinstance(source, tuple):
        return taken_apart(node, name, source)
    if name not in FUNCTIONS:
        return None
    args = [argument_text(arg, texts) for arg in node.args]
    kwargs = [(key, argument_text(value, texts)) for key, value in node.kwargs.items()]
    if None in args or None in dict(kwargs).values():
        return None
    return f"{name}({', '.join([*map(str, args), *(f'{key}={value}' for key, value in kwargs)])})"


def taken_apart(node: fx.Node, name: str, parts: tuple[str, ...]) -> Text | None:
    """A half of gate and up, side by side."""
    if name == "getitem":
        return parts[node.args[1]]  # type: ignore[index]
    if name in ("split", "chunk") and node.args[1] == (WIDTH if name == "split" else 2):
        return parts
    if name == "slice":
        start, stop = slice(*node.args[2:]).indices(2 * WIDTH)[:2]
        step = node.args[4] if len(node.args) > 4 else 1
        if step == 1 and (start, stop) in ((0, WIDTH), (WIDTH, 2 * WIDTH)):
            return parts[start // WIDTH]
    return None


def text_in(argument: object, texts: dict[fx.Node, Text | None]) -> Text | None:
    return texts[argument] if isinstance(argument, fx.Node) else None


def argument_text(argument: object, texts: dict[fx.Node, Text | None]) -> str | None:
    if isinstance(argument, fx.Node):
        found = texts[argument]
        return found if isinstance(found, str) else None
    return repr(argument) if argument is None or isinstance(argument, (bool, int, float, str)) else None


def experts_forward(
    module: Any, hidden: torch.Tensor, index: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    """What an experts module runs during the trace.

    The fused first weight is taken apart where gate and up lie one after the other: its plain shard would hold all
    gates and no ups.
    """
    weight = module.gate_up_proj if module.has_gate else module.up_proj
    apart = 2 if module.has_gate and "gate" in module._autoplan_activation else 1
    first = list(weight.chunk(apart, dim=2 if module.is_transposed else 1))
    biases: list[torch.Tensor] = []
    if module.has_bias:
        biases = list((module.gate_up_proj_bias if module.has_gate else module.up_proj_bias).chunk(apart, dim=1))
    last = module.down_proj_bias if module.has_bias else None
    down, text = module.down_proj, module._autoplan_activation
    return added_up(hidden, index, scores, first, down, biases, last, text, bool(module.is_transposed))


def added_up(
    hidden: torch.Tensor, index: torch.Tensor, scores: torch.Tensor, first: Sequence[torch.Tensor], down: torch.Tensor,
    biases: Sequence[torch.Tensor], last: torch.Tensor | None, activation: str, transposed: bool,
    named: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """``autoplan::experts`` of [tokens, h] with the bias of the second product, [experts, o], where there is one: a
    summand of its own, for it is added once where that product is a sum over ranks. It is scores spread over the
    experts, [tokens, experts], times the biases.

    named  one more than the greatest index, where that may name no expert
    """
    settings = (activation, transposed, False, False, False)
    result, _ = torch.ops.autoplan.experts(hidden, index, scores, list(first), down, list(biases), *settings)
    if last is not None:
        count = down.shape[0]
        spread = scores.new_zeros(*scores.shape[:-1], max(named or 0, count)).scatter_add(-1, index, scores)
        spread = spread[..., :count] if spread.shape[-1] > count else spread
        result = result + (spread.to(hidden.dtype) @ last)
    return result


def each_choice(rows: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each row by its expert's matrix, [rows, o]: index [rows], weight [experts, o, h]. Zeros where it has none."""
    settings = ("x", False, False, False, False)
    ones, index = rows.new_ones(rows.shape[0], 1), index.reshape(-1, 1)
    return torch.ops.autoplan.experts(rows, index, ones, [], weight, [], *settings)[0]
