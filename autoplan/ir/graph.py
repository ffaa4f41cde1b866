"""The traced model, free of torch.fx.

A model is a chain of *segments*, each an instance of a *block*: the embedding, the decoder layer (eighty segments of
one block), the head with the loss. A block's code, strategy and class are found once, however often it repeats.

Values that carry no gradient (ids, masks, rotary tables, counts of valid tokens) are *constants*: they stand in a
graph of their own, and each pipeline stage recomputes the ones it reads from the batch instead of receiving them.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype (as torch spells it, without "torch.") of a whole, unsharded tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class Ref:
    """A reference to a value by name, inside a node's arguments."""

    name: str


@dataclass(frozen=True)
class DType:
    """A dtype as an argument, e.g. DType("float32")."""

    name: str


Argument = object  # Ref | DType | int | float | bool | str | None | tuple of these


@dataclass(frozen=True)
class Node:
    """One operator with one tensor result.

    op      "aten.linear.default", or "autoplan.…" for the canonical operators that ATen lacks
    args, kwargs  as torch takes them; tensors as Ref, lists as tuples
    module  path of the module that ran it, "model.layers.0.mlp.down_proj" ("" for the root)
    """

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    type: TensorType
    module: str = ""

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors it reads, in the order of its arguments; one read twice stands twice."""
        return tuple(ref.name for ref in walk_refs((self.args, tuple(v for _, v in self.kwargs))))


BATCH_NORM = "autoplan.batch_norm"
READ_BUFFER, UPDATE_BUFFER = "autoplan.read_buffer", "autoplan.update_buffer"
STATISTICS = slice(3, 6)  # batch norm's running mean, its running variance, and how many batches they are of


def buffers_updated(node: Node) -> tuple[str, ...]:
    """The buffers that an operator changes."""
    changed = {BATCH_NORM: node.args[STATISTICS], UPDATE_BUFFER: node.args[:1]}.get(node.op, ())
    return tuple(ref.name for ref in changed if isinstance(ref, Ref))


def walk_refs(argument: Argument) -> Iterator[Ref]:
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from walk_refs(item)


def free_name(name: str, taken: Container[str], first: int = 1, between: str = "_") -> str:
    """The name, or the name with a free number from ``first`` on: the least one where taken numbers have no gaps. It is
    found by doubling and bisection, since a graph may have thousands of values of one stem."""
    if name not in taken:
        return name
    low, high = -1, 0  # the number at ``low`` is taken
    while f"{name}{between}{first + high}" in taken:
        low, high = high, 2 * high + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{name}{between}{first + middle}" in taken else (low, middle)
    return f"{name}{between}{first + high}"


def map_refs(argument: Argument, value: Callable[[Ref], Argument]) -> Argument:
    """The argument with each Ref, in order, replaced by its ``value``."""
    if isinstance(argument, Ref):
        return value(argument)
    return tuple(map_refs(item, value) for item in argument) if isinstance(argument, tuple) else argument


@dataclass(frozen=True)
class Typed:
    """A named value that enters: a batch input, an activation, a constant."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Member:
    """A box of one of the user's parameters within one of the program's that is none of these.

    A matrix lies row after row in a flat one (``autoplan.search.tables``); each of several alike is an entry of the
    first dim of one of more dims (``autoplan.trace.passes.stacked_weights``).

    source, shape, aliases   the user's own parameter, the whole of it
    first, size  the box' first row and column; how many it has
    start        its first element in the program's parameter
    """

    source: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    size: tuple[int, ...]
    start: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """One parameter of the program, under the name the user's model has for it.

    A piece of a fused projection is ``c_attn.weight[:, 0:768]``: ``source`` is the whole one's name, ``dim``, ``start``
    and ``stop`` say which part. Otherwise ``source`` is the name itself. ``aliases``: further names of a tied one.
    ``members``: what one that is none of the user's consists of; between those of a flat one is padding.
    """

    name: str
    type: TensorType
    source: str
    dim: int = -1
    start: int = 0
    stop: int = 0
    aliases: tuple[str, ...] = ()
    trainable: bool = True
    members: tuple[Member, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The user's names of it; of a flat one the first matrix'."""
        first = self.members[0] if self.members else self
        return (first.source, *first.aliases)


@dataclass(frozen=True)
class Buffer:
    """A buffer that the graph reads or mutates (batch norm's statistics)."""

    name: str
    type: TensorType
    persistent: bool = True


@dataclass(frozen=True)
class Block:
    """The code of one distinct part. Names inside are local to it.

    name        the class it will be emitted as, "LlamaDecoderLayer"
    inputs      activations that enter, each carrying a gradient
    externals   constants it reads
    parameters  local names ("self_attn.q_proj.weight") with types
    frozen      of these names those that aren't trained: no gradient goes back to them
    buffers     local names of buffers it reads or mutates
    nodes       in an order of execution
    outputs     names of the activations that leave, in the order of the next segment's inputs; the last segment's
                only output is the loss (or the model's result, at inference)
    """

    name: str
    inputs: tuple[Typed, ...]
    externals: tuple[Typed, ...]
    parameters: tuple[Typed, ...]
    buffers: tuple[Typed, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    frozen: tuple[str, ...] = ()

    def types(self) -> dict[str, TensorType]:
        """Every value of the block by name."""
        entering = (*self.inputs, *self.externals, *self.parameters, *self.buffers)
        return {v.name: v.type for v in entering} | {n.name: n.type for n in self.nodes}

    def carries_gradient(self) -> frozenset[str]:
        """Names of the values that may carry a gradient: floating and reached from an input or a trained parameter."""
        live = {v.name for v in (*self.inputs, *self.parameters) if v.type.floating and v.name not in self.frozen}
        for node in self.nodes:
            if node.type.floating and any(name in live for name in node.operands):
                live.add(node.name)
        return frozenset(live)


@dataclass(frozen=True)
class Segment:
    """One instance of a block in the chain; the tuples run beside the block's own.

    block       index into Model.blocks
    path        the module it stands for, "model.layers.0" ("" where it is none)
    parameters  the model's name of each block parameter (a canonical one: tied names are resolved)
    buffers     likewise
    externals   the constant, buffer or batch input that each block external reads
    """

    block: int
    path: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    externals: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A whole traced model.

    name        the root module's class
    batch       inputs of one optimizer step, whole batch
    parameters, buffers   everything that has a name in the user's model and is read
    constants   nodes without gradient, over batch inputs and buffers, in an order of execution
    counts      names of the constants that are counted once a step over the whole batch (denominators)
    blocks, segments   the chain: segment i+1 takes what segment i gives
    unread      parameters and persistent buffers that nothing reads, in their own dtype: kept for the state dict
    """

    name: str
    batch: tuple[Typed, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[Node, ...]
    counts: tuple[str, ...]
    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    notes: tuple[str, ...] = field(default=())
    unread: tuple[Parameter, ...] = ()

    def types(self) -> dict[str, TensorType]:
        """Every value of the batch, the buffers and the constants by name."""
        entering = {v.name: v.type for v in self.batch} | {b.name: b.type for b in self.buffers}
        return entering | {node.name: node.type for node in self.constants}

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)


def batch_rows(model: Model) -> int:
    """Rows of the whole batch: the commonest first size among the batch's inputs."""
    sizes = Counter(t.type.shape[0] for t in model.batch if t.type.shape)
    return sizes.most_common(1)[0][0] if sizes else 1
