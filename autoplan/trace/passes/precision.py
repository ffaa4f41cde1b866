"""Precisions: what a program computes in, a traced model in another one, and a module that stays in float64."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator; no public alias
from torch.utils._pytree import tree_map  # as above

from autoplan.ir.graph import Argument, Block, DType, Model, Node, Ref, TensorType, Typed

COMPUTE = {
    "fp32": "float32", "fp64": "float32", "bf16": "bfloat16", "bf16-mixed": "bfloat16", "fp16-mixed": "float16",
}  # fmt: skip
FLOATING = ("float16", "bfloat16", "float32", "float64")
WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip


def compute_dtype(precision: str) -> str:
    """The dtype to trace in. For "fp64" it is float32, which ``in_precision`` widens: casts to float32 inside a model
    would otherwise stay."""
    return COMPUTE[precision]


def computed_in(precision: str) -> str:
    """The dtype that matmuls of a precision run in."""
    return "float64" if precision == "fp64" else COMPUTE[precision]


def in_precision(model: Model, precision: str) -> Model:
    """The model in a precision: for "fp64" with every floating dtype float64 and the casts between them gone; for the
    others as it was traced."""
    if precision != "fp64":
        return model
    gone, constants = widened_nodes(model.constants, model.types())
    outside = {node.name: kind for node, kind in gone.items()}
    return replace(
        model,
        batch=tuple(map(wide_typed, model.batch)),
        parameters=tuple(replace(p, type=wide(p.type)) for p in model.parameters),
        buffers=tuple(replace(b, type=wide(b.type)) for b in model.buffers),
        constants=constants,
        blocks=tuple(map(wide_block, model.blocks)),
        segments=tuple(
            replace(s, externals=tuple(outside.get(name, name) for name in s.externals)) for s in model.segments
        ),
    )


def wide(kind: TensorType) -> TensorType:
    return TensorType(kind.shape, wide_dtype(kind.dtype))


def wide_dtype(dtype: str) -> str:
    return "float64" if dtype in FLOATING else "complex128" if dtype == "complex64" else dtype


def wide_typed(value: Typed) -> Typed:
    return Typed(value.name, wide(value.type))


def wide_block(block: Block) -> Block:
    gone, nodes = widened_nodes(block.nodes, block.types())
    names = {node.name: source for node, source in gone.items()}
    return replace(
        block,
        inputs=tuple(map(wide_typed, block.inputs)),
        externals=tuple(map(wide_typed, block.externals)),
        parameters=tuple(map(wide_typed, block.parameters)),
        buffers=tuple(map(wide_typed, block.buffers)),
        nodes=nodes,
        outputs=tuple(names.get(name, name) for name in block.outputs),
    )


def widened_nodes(nodes: Sequence[Node], types: Mapping[str, TensorType]) -> tuple[dict[Node, str], tuple[Node, ...]]:
    """(casts that are gone, with what they were casts of; the other nodes)."""
    names: dict[str, str] = {}
    gone: dict[Node, str] = {}
    kept = []
    for node in nodes:
        source = node.args[0] if node.op == "aten.to.dtype" else None
        if isinstance(source, Ref) and node.type.floating and wide(types[source.name]) == wide(node.type):
            names[node.name] = gone[node] = names.get(source.name, source.name)
            continue
        args, kwargs = wide_argument(node.args, names), wide_argument(node.kwargs, names)
        assert isinstance(args, tuple) and isinstance(kwargs, tuple)
        kept.append(replace(node, args=args, kwargs=kwargs, type=wide(node.type)))
    return gone, tuple(kept)


def wide_argument(argument: Argument, names: Mapping[str, str]) -> Argument:
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    if isinstance(argument, DType):
        return DType(wide_dtype(argument.name))
    if isinstance(argument, tuple):
        return tuple(wide_argument(item, names) for item in argument)
    return argument


class Widen(TorchDispatchMode):
    """Every floating result is float64, every complex one complex128: dtype arguments are replaced, and what still
    comes out narrower is cast."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*tree_map(widen_dtype, args), **tree_map(widen_dtype, kwargs or {}))
        in_place = any(r.alias_info is not None for r in func._schema.returns)
        return result if in_place else tree_map(widen_tensor, result)


def widen_dtype(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def widen_tensor(value: Any) -> Any:
    return value.to(WIDER[value.dtype]) if isinstance(value, torch.Tensor) and value.dtype in WIDER else value


@contextmanager
def widened() -> Iterator[None]:
    """Under this a module in float64 stays in float64, also where it casts to float32 (Hugging Face's norms and losses
    do), so that it is a reference to 1e-10 and better. The default dtype is float64 meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widen():
            yield
    finally:
        torch.set_default_dtype(before)
