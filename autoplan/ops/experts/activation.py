"""What runs between an expert's products, as text: ``mul(silu(gate), up)``, and its gradient.

The text is part of a plan, so it is read as an expression of named functions and nothing else; nothing is executed.
Reverse mode runs over the expression itself: where the operator calls for gradients, below torch.library, there is no
autograd, and tensors that torch.func wraps don't pass a TorchDispatchMode.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts.derivatives import DERIVATIVES, OF_NOTHING, OF_RESULT

FUNCTIONS = frozenset(DERIVATIVES)
"""Operators of ``torch.ops.aten`` that an activation may be made of: elementwise ones, and ``slice``."""

Constant = None | bool | int | float | str
Made = Callable[[Sequence[Tensor]], tuple[Tensor, list[Tensor]]]
Through = Callable[[Sequence[Tensor], Tensor, Sequence[Tensor]], tuple[Tensor, list[Tensor]]]


@dataclass(frozen=True)
class Call:
    """A function of what other texts stand for."""

    name: str
    args: tuple[str, ...]
    keywords: dict[str, str]

    def operands(self) -> set[str]:
        return {*self.args, *self.keywords.values()}

    def given(self, values: dict[str, Any]) -> tuple[list, dict[str, Any]]:
        return [values[text] for text in self.args], {key: values[text] for key, text in self.keywords.items()}

    def value(self, values: dict[str, Any]) -> Any:
        args, keywords = self.given(values)
        return getattr(torch.ops.aten, self.name)(*args, **keywords)

    def gradients(self, gradient: Tensor, result: Tensor, values: dict[str, Any]) -> list[tuple[str, Tensor]]:
        """What the call adds to the gradient of each of its operands that is a tensor."""
        rules, found = DERIVATIVES[self.name], []
        args, keywords = self.given(values)
        for argument, text in (*zip(rules, self.args, strict=False), *self.keywords.items()):
            if isinstance(operand := values[text], Tensor):
                part = rules[argument](gradient, result, *args, **keywords)
                if part.shape != operand.shape:
                    part = part.sum_to_size(operand.shape)
                found.append((text, part if part.dtype == operand.dtype else part.to(operand.dtype)))
        return found


@dataclass(frozen=True)
class Expression:
    """Constants and calls by their texts, operands before the calls that read them, and the text of the value. What
    stands in the expression twice stands here once, so it is computed once."""

    constants: dict[str, Constant]
    calls: dict[str, Call]
    result: str

    @property
    def kept(self) -> list[str]:
        """The calls whose results are read again once the gradient is known, as autograd keeps them: by derivatives,
        and that which is the value. A slice is a view of what is kept."""
        read = {self.result}
        for at, call in self.calls.items():
            tensors = [text for text in (*call.args, *call.keywords.values()) if text not in self.constants]
            scales = len(tensors) == 1 and (call.name == "mul" or (call.name == "div" and call.args[0] in tensors))
            if call.name in OF_RESULT:
                read.add(at)
            elif not scales and call.name not in OF_NOTHING:
                read.update(tensors)
        return [at for at, call in self.calls.items() if at in read and call.name != "slice"]


@dataclass(frozen=True)
class Counts:
    """Of an activation: how many of its calls make a tensor, and how many tensors all calls read.

    kept    of the calls' results
    redone  tensors that the other calls make and read: they run again in a backward that has what is kept
    """

    calls: int
    read: int
    kept: int
    redone: int


def counts(text: str, names: tuple[str, ...]) -> Counts:
    expression = read_expression(text, names)
    tensors, kept = {*names, *expression.calls}, expression.kept
    made = {at: call for at, call in expression.calls.items() if call.name != "slice"}  # a slice is a view
    reads = {at: len(call.operands() & tensors) for at, call in expression.calls.items()}
    redone = sum(1 + reads[at] for at in made if at not in kept)
    return Counts(len(made), sum(reads.values()), len(kept), redone)


def activation_function(text: str, names: tuple[str, ...]) -> Callable[..., Tensor]:
    """The function of ``names`` that a text stands for; ValueError where it is none of calls of ``FUNCTIONS``."""
    function = value_and_made(text, names, keep=False)
    return lambda *tensors: function(tensors)[0]


def value_and_made(text: str, names: tuple[str, ...], keep: bool) -> Made:
    """The function of tensors of ``names`` -> (value, what ``value_and_gradients`` needn't compute again); ValueError
    as in ``activation_function``.

    keep  else nothing is, and a result goes once it has been read for the last time
    """
    read = read_expression(text, names)
    kept = read.kept if keep else []
    last = {operand: at for at, call in read.calls.items() for operand in call.operands() if operand not in kept}

    def function(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        values: dict[str, Any] = {**read.constants, **dict(zip(names, tensors, strict=True))}
        for at, call in read.calls.items():
            values[at] = call.value(values)
            for operand in call.operands():
                if last.get(operand) == at:
                    del values[operand]  # its memory is free for what follows
        return values[read.result], [values[at] for at in kept]

    return function


def value_and_gradients(text: str, names: tuple[str, ...]) -> Through:
    """The function of (tensors of ``names``, gradient of the value, what was kept or nothing) -> (value, gradients of
    the tensors); ValueError as in ``activation_function``."""
    read = read_expression(text, names)

    def function(
        tensors: Sequence[Tensor], gradient: Tensor, made: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        values: dict[str, Any] = {**read.constants, **dict(zip(names, tensors, strict=True))}
        known = dict(zip(read.kept, made, strict=True)) if made else {}
        for at, call in read.calls.items():
            values[at] = known[at] if at in known else call.value(values)
        value, gradients = values[read.result], {read.result: gradient}
        for at, call in reversed(read.calls.items()):
            if at in gradients:  # not a call of numbers alone
                for operand, part in call.gradients(gradients.pop(at), values.pop(at), values):
                    gradients[operand] = gradients[operand] + part if operand in gradients else part
        found = (gradients.get(name) for name in names)
        return value, [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]

    return function


def read_expression(text: str, names: tuple[str, ...]) -> Expression:
    source = " ".join(text.split()).encode()
    body = ast.parse(source, mode="eval").body
    expression = Expression({}, {}, spelling(body, source))
    read_node(body, source, names, expression)
    if expression.result in expression.constants:
        raise ValueError(f"{text!r} is no call of a known function")
    return expression


def spelling(node: ast.expr, source: bytes) -> str:
    """A part of an expression as it stands in a line of text."""
    return source[node.col_offset : node.end_col_offset].decode()


def read_node(node: ast.expr, source: bytes, names: tuple[str, ...], into: Expression) -> str:
    """Adds a part of an expression; its text."""
    text = spelling(node, source)
    match node:
        case ast.Name(id=name) if name in names:
            pass
        case ast.Constant(value=None | bool() | int() | float() | str() as constant):
            into.constants[text] = constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            into.constants[text] = -number
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in FUNCTIONS:
            operands = tuple(read_node(arg, source, names, into) for arg in args)
            named = {str(k.arg): read_node(k.value, source, names, into) for k in keywords}
            into.calls[text] = Call(name, operands, named)
        case _:
            raise ValueError(f"{text!r} is no call of a known function")
    return text
