"""Makes canonical nodes: infers each result's type, and never makes a node that does nothing.

Types come from running the operator on meta tensors, so that no shape rule is written twice.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from autoplan.ir.graph import Argument, DType, Node, Ref, TensorType, Typed, free_name, walk_refs

Value = object  # Ref, a Python scalar, or a tuple of these: what an operator of torch.fx takes or gives
HALVES = frozenset({"float16", "bfloat16"})


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(int(size) for size in tensor.shape), dtype_name(tensor.dtype))


def torch_dtype(dtype: str) -> torch.dtype:
    found = getattr(torch, dtype)
    assert isinstance(found, torch.dtype), dtype
    return found


def torch_argument(argument: Argument, tensor: Callable[[Ref], object]) -> Any:
    """The argument as torch takes it: a ``tensor`` for each Ref, in order, and lists."""
    if isinstance(argument, Ref):
        return tensor(argument)
    if isinstance(argument, DType):
        return torch_dtype(argument.name)
    return [torch_argument(item, tensor) for item in argument] if isinstance(argument, tuple) else argument


def overload(op: str) -> torch._ops.OpOverload:
    """ "aten.linear.default" -> torch.ops.aten.linear.default"""
    namespace, name, variant = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


class Builder:
    """Collects nodes in order of execution.

    module  the path that new nodes are attributed to
    sparse  names of tables that the user's operators give sparse gradients
    """

    def __init__(self, entering: Iterable[Typed] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.types: dict[str, TensorType] = {value.name: value.type for value in entering}
        self.module = ""
        self.sparse: set[str] = set()

    def enter(self, name: str, type: TensorType) -> Ref:
        """Declares a value that no node makes."""
        self.types[name] = type
        return Ref(name)

    def type(self, ref: Value) -> TensorType:
        assert isinstance(ref, Ref), ref
        return self.types[ref.name]

    def shape(self, ref: Value) -> tuple[int, ...]:
        return self.type(ref).shape

    def maker(self, ref: Value, op: str) -> Node | None:
        """The node that made a value, if it is this operator."""
        node = self.nodes.get(ref.name) if isinstance(ref, Ref) else None
        return node if node is not None and node.op == op else None

    def emit(
        self, op: str, *args: Argument, type: TensorType | None = None, kwargs: Iterable[tuple[str, Argument]] = (),
        hint: str = "",
    ) -> Ref:  # fmt: skip
        """One new node; its type is inferred unless it is given. ``hint`` is the stem of its name."""
        kwargs = tuple(kwargs)
        kind = type or self.infer(op, args, kwargs)
        name = self.fresh(hint or op.split(".")[1].strip("_"))
        self.nodes[name] = Node(name, op, args, kwargs, kind, self.module)
        self.types[name] = kind
        return Ref(name)

    def infer(self, op: str, args: tuple[Argument, ...], kwargs: tuple[tuple[str, Argument], ...]) -> TensorType:
        """By running the operator on the meta device, where it has a shape and a dtype and no memory."""
        given, function = [torch_argument(argument, self.meta) for argument in args], overload(op)
        named = {key: torch_argument(value, self.meta) for key, value in kwargs}
        if not tuple(walk_refs((args, kwargs))) and any(a.name == "device" for a in function._schema.arguments):
            named["device"] = "meta"  # full, arange: no operand says where
        result = function(*given, **named)
        assert isinstance(result, torch.Tensor), f"{op} has several results"
        return type_of(result)

    def meta(self, ref: Ref) -> torch.Tensor:
        kind = self.types[ref.name]
        return torch.empty(kind.shape, dtype=torch_dtype(kind.dtype), device="meta")

    def fresh(self, stem: str) -> str:
        return free_name(stem, self.types)

    # Views and casts that change nothing give back their operand.

    def reshape(self, x: Ref, shape: Iterable[int]) -> Ref:
        """Reshaping back to what the tensor was before gives that tensor."""
        shape, source = tuple(shape), x
        while self.shape(source) != shape:
            before = self.maker(source, "aten.reshape.default")
            if before is None:
                return self.emit("aten.reshape.default", x, shape)
            assert isinstance(before.args[0], Ref)
            source = before.args[0]
        return source

    def expand(self, x: Ref, shape: Iterable[int]) -> Ref:
        shape = tuple(shape)
        return x if self.shape(x) == shape else self.emit("aten.expand.default", x, shape)

    def slice(self, x: Ref, dim: int, start: int, stop: int) -> Ref:
        if (start, stop) == (0, self.shape(x)[dim]):
            return x
        return self.emit("aten.slice.Tensor", x, dim, start, stop)

    def cast(self, x: Ref, dtype: str) -> Ref:
        return x if self.type(x).dtype == dtype else self.emit("aten.to.dtype", x, DType(dtype))

    def narrowed(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """What an operator of products takes where halves meet wider numbers: halves, as under autocast."""
        floats = {self.type(x).dtype for x in values if isinstance(x, Ref) and self.type(x).floating}
        half = floats & HALVES
        if len(floats) < 2 or len(half) != 1:
            return values
        (dtype,) = half
        return tuple(self.cast(x, dtype) if isinstance(x, Ref) and self.type(x).floating else x for x in values)

    def permute(self, x: Ref, dims: Iterable[int]) -> Ref:
        dims = tuple(dims)
        return x if dims == tuple(range(len(dims))) else self.emit("aten.permute.default", x, dims)

    def full(self, shape: Iterable[int], value: bool | int | float, dtype: str) -> Ref:
        return self.emit("aten.full.default", tuple(shape), value, kwargs=(("dtype", DType(dtype)),))
