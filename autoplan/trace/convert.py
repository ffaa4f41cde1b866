"""An exported program -> Flat: every node of torch.fx in its canonical form."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from autoplan.errors import NoRuleError, TraceError
from autoplan.ir.graph import DType, Ref, Typed, buffers_updated
from autoplan.rules.registry import registered
from autoplan.trace import forms as _forms  # noqa: F401  fills the table
from autoplan.trace.builder import Builder, Value, dtype_name, overload, type_of
from autoplan.trace.canonical_forms import forms, positive
from autoplan.trace.capture import node_line
from autoplan.trace.checks.changed_state import changed_buffers, check_alone
from autoplan.trace.direct import (
    DROPPED,
    GRAD_REGION,
    OUT,
    SCATTERS,
    functional,
    idle_nodes,
    in_place,
    out_of_place,
    part_of,
    place_of,
    region_body,
    region_of,
)
from autoplan.trace.masked import masked_operators as masked
from autoplan.trace.passes.buffer_updates import with_updates
from autoplan.trace.passes.decompose import Decomposer
from autoplan.trace.passes.literals import literal

PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "generator")
ATEN = "aten."
DIMS = ("dim", "dim0", "dim1", "dims")
PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        *(f"{n}.default" for n in ("linear", "mm", "matmul", "bmm", "mv", "addmm", "baddbmm", "convolution")),
        *(f"conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")),
        "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
    )
)  # fmt: skip
"""What autocast runs in halves: a wider operand, as what a float32 buffer was added to, is cast to them."""


@dataclass(frozen=True)
class Names:
    """How names of the exported wrapper map to the user's: parameters and buffers, batch inputs, module paths; and of
    which parameter or buffer a tensor is another view."""

    state: Callable[[str], str]
    batch: Sequence[str]
    module: Callable[[str], str]
    holder: Callable[[torch.Tensor], str | None]


@dataclass(frozen=True)
class Converted:
    """The canonical nodes, in order of execution, and the result."""

    builder: Builder
    output: str
    batch: tuple[Typed, ...]
    buffers: tuple[Typed, ...]


class Converter:
    """Walks an exported graph. ``env`` holds the canonical value of each of its nodes by name."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.builder = Builder()
        self.table = forms()
        self.decomposer = Decomposer()
        self.failed: list[str] = []  # the nodes that an error came from, the innermost first

    def graph(self, module: fx.GraphModule, env: dict[str, Value]) -> dict[str, Value]:
        """Converts a graph whose placeholders are in ``env``; gives ``env`` with every node."""
        idle = idle_nodes(module.graph)
        for node in module.graph.nodes:
            if node.op == "call_function" and node not in idle:
                self.builder.module = self.names.module(path_of(node)) or self.builder.module
                try:
                    env[node.name] = self.node(node, module, env)
                except (TraceError, NoRuleError):
                    self.failed.append(node.name)
                    raise
            elif node.op == "get_attr" and isinstance(held := getattr(module, str(node.target), None), torch.Tensor):
                env[node.name] = constant(self.builder, str(node.target), held, self.names)
        return env

    def node(self, node: fx.Node, module: fx.GraphModule, env: dict[str, Value]) -> Value:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            several = env[source.name]
            assert isinstance(several, tuple)
            if several[index] is None and any(user.op == "call_function" for user in node.users):
                raise NoRuleError(
                    str(source.target),
                    f"module {self.builder.module or 'the root'!r} reads its result {index}, of which nothing is known",
                    "compute what it holds by another operator",
                )
            return several[index]
        op = str(node.target)
        if op in DROPPED:
            return None
        if region_body(node) is not None:
            return self.region(node, module, env)
        if node.target is operator.add and any(isinstance(a, fx.Node) for a in node.args):
            return masked.added(translate(node.args, env))
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            cause = "it runs a graph of its own as often, or if, values say: parts of a batch would go other ways"
            remedy = "write a branch as torch.where, a loop of fixed length in Python, and map as a batched operator"
            raise TraceError(f"{op} in module {self.builder.module or 'the root'!r}", cause, remedy)
        args = tuple(translate(arg, env) for arg in node.args)
        placed = PLACEMENT if op.startswith(ATEN) else ()  # a user's operator may mean something else by these words
        kwargs = {key: translate(value, env) for key, value in node.kwargs.items() if key not in placed}
        if isinstance(node.target, torch._ops.OpOverload) and in_place(node.target):
            return self.replacing(node, op, args, kwargs, env)
        return self.canonical(node, op, args, kwargs)

    def canonical(self, node: fx.Node, op: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        args = masked.sized(op, args)
        if op == "aten.as_strided.default":
            check_contiguous(node, self.builder.module)
        if isinstance(node.target, torch._ops.OpOverload):
            if any(masked.found((args, tuple(kwargs.values())))):
                as_of_all = partial(self.canonical, node)
                return masked.apply(self.builder, as_of_all, overload(op), args, kwargs)
            if (rows := masked.kept(self.builder, op, args)) is not None:
                return rows
        known = self.table.get(op)
        if op in PRODUCTS:
            args = self.builder.narrowed(args)
        if known:
            return known(self.builder, *args, **kwargs)
        if isinstance(node.target, torch._ops.OpOverload) and op not in registered():
            check_values_unread(node, node.target, self.builder.module)
            plain = overload(op)  # in place of one that changes its operand
            if self.decomposer.decomposes(plain):
                return self.decomposed(plain, args, kwargs)
        return as_it_is(self.builder, node, op, args, kwargs)

    def decomposed(self, op: torch._ops.OpOverload, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """An operator of which nothing is known, as those that torch makes it of."""
        try:
            body, refs = self.decomposer.decompose(self.builder, op, args, kwargs)
        except Exception as error:  # whatever an operator's own decomposition raises on meta tensors
            cause = f"torch can't say what it is made of without values: {str(error).strip().splitlines()[0]}"
            module = self.builder.module or "the root"
            remedy = "compute it by other operators, or make it a torch.library operator with a backward and a rule"
            raise NoRuleError(f"{op} in module {module!r}", cause, remedy) from error
        entering = [node.name for node in body.graph.nodes if node.op == "placeholder"]
        env = self.graph(body, dict(zip(entering, refs, strict=True)))
        (result,) = (node for node in body.graph.nodes if node.op == "output")
        return translate(result.args[0], env)

    def replacing(
        self, node: fx.Node, op: str, args: tuple[Value, ...], kwargs: Mapping[str, Value], env: dict[str, Value]
    ) -> Value:
        """An operator in place: who reads its operand from here on reads the result."""
        plain = out_of_place(op)
        assert plain is not None
        kept = {key: value for key, value in kwargs.items() if key != OUT}
        return self.put(place_of(node), self.canonical(node, plain, args, kept), env)

    def put(self, place: fx.Node, value: Value, env: dict[str, Value]) -> Value:
        """A new value for a node, and for what it is a slice of."""
        env[place.name] = value
        scatter = SCATTERS.get(str(place.target))
        if scatter is not None:
            source, *where = place.args
            assert isinstance(source, fx.Node)
            self.put(source, self.table[scatter](self.builder, env[source.name], value, *where), env)
        elif (source := part_of(place)) is not None:
            self.put(source, value, env)
        return value

    def region(self, node: fx.Node, module: fx.GraphModule, env: dict[str, Value]) -> Value:
        """A region without gradients or without autocast, in line; no gradient passes what leaves the former. What it
        changes in place is changed for who follows."""
        body, at = region_of(node, module), region_body(node)
        assert at is not None
        entering = [p for p in body.graph.nodes if p.op == "placeholder"]
        given = {p.name: translate(arg, env) for p, arg in zip(entering, node.args[at + 1 :], strict=True)}
        inner = self.graph(body, dict(given))
        (result,) = (n for n in body.graph.nodes if n.op == "output")
        values = translate(result.args[0], inner)
        assert isinstance(values, tuple)
        changed = [p.name for p in entering if inner[p.name] is not given[p.name]]
        left = {value.name: value for value in (*values, *map(inner.get, changed)) if isinstance(value, Ref)}
        if str(node.target) == GRAD_REGION and node.args[0] is False:
            left = {name: self.builder.emit("aten.detach.default", value) for name, value in left.items()}
        leaving = partial(of_names, left)
        for placeholder, place in zip(entering, node.args[at + 1 :], strict=True):
            if placeholder.name in changed:
                assert isinstance(place, fx.Node)
                check_alone(place, node, self.builder.module)
                self.put(place, leaving(inner[placeholder.name]), env)
        return tuple(map(leaving, values))


def of_names(renamed: Mapping[str, Ref], value: Value) -> Value:
    return renamed.get(value.name, value) if isinstance(value, Ref) else value


def convert(program: ExportedProgram, names: Names, lines: Callable[[], ExportedProgram]) -> Converted:
    """Canonical nodes of an exported program. TraceError, with the user's line, where it holds what has no canonical
    form.

    lines  captures the program again so that its nodes have lines, for an error to name one
    """
    converter = Converter(names)
    builder = converter.builder
    program = functional(program, forms())
    env: dict[str, Value] = {}
    batch, buffers = enter_inputs(program, names, builder, env)
    entered = dict(env)
    try:
        converter.graph(program.graph_module, env)
    except (TraceError, NoRuleError) as error:
        line = node_line(functional(lines(), forms()), converter.failed)
        if not line:
            raise
        if isinstance(error, NoRuleError):  # its value is the operator
            raise NoRuleError(error.value, f"{error.cause} ({line})", error.remedy) from error
        raise TraceError(f"{line}: {error.value}", error.cause, error.remedy) from error
    changed = changed_buffers(program, names.state, entered, env)
    counted = {name for node in builder.nodes.values() for name in buffers_updated(node)}  # by batch norms themselves
    with_updates(builder, {name: value for name, value in changed.items() if name not in counted})
    return Converted(builder, result_of(program, env), batch, buffers)


def enter_inputs(
    program: ExportedProgram, names: Names, builder: Builder, env: dict[str, Value]
) -> tuple[tuple[Typed, ...], tuple[Typed, ...]]:
    """Declares parameters, buffers and the batch; constants made inside forward become fulls."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    batch: list[Typed] = []
    buffers: list[Typed] = []
    for spec in program.graph_signature.input_specs:
        value = placeholders[spec.arg.name].meta["val"]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            assert spec.target is not None
            name = names.state(spec.target)
            env[spec.arg.name] = builder.enter(name, type_of(value))
            if spec.kind == InputKind.BUFFER and all(name != known.name for known in buffers):  # one that modules share
                buffers.append(Typed(name, type_of(value)))
        elif spec.kind == InputKind.USER_INPUT:
            name = names.batch[len(batch)]
            env[spec.arg.name] = builder.enter(name, type_of(value))
            batch.append(Typed(name, type_of(value)))
        else:
            env[spec.arg.name] = constant(builder, spec.target, program.constants.get(spec.target or ""), names)
    return tuple(batch), tuple(buffers)


def constant(builder: Builder, name: str | None, value: object, names: Names) -> Ref:
    """A tensor of numbers that forward holds. TraceError where it is a parameter in disguise, or of too many."""
    if not isinstance(value, torch.Tensor):
        kind, remedy = type(value).__name__, "hand in with the batch what it makes; for random numbers use dropout or "
        raise TraceError(f"constant {name!r}", f"forward uses a {kind}, of which nothing is known",
                         f"{remedy}rand_like without a generator")  # fmt: skip
    holder = names.holder(value)
    if holder is not None:
        raise TraceError(
            holder,
            "forward reads its numbers past the module (by .data, a closure or a patched method), and they would stay "
            "what they are now",
            "read it as the module's own, with .detach() where no gradient shall pass",
        )
    if value.is_meta or hasattr(value, "fake_mode"):
        cause = "forward uses a tensor whose numbers the trace doesn't know, such as one that .data gives"
        raise TraceError(f"constant {name!r}", cause, "write .detach() for .data, or make it a buffer of its module")
    found = literal(builder, value)
    if found is None:
        raise TraceError(
            f"constant {name!r}",
            "the model makes a tensor of many values in forward that no operator computes",
            "register it as a buffer of its module",
        )
    return found


def path_of(node: fx.Node) -> str:
    """The innermost module that ran the node."""
    stack = node.meta.get("nn_module_stack")
    return list(stack.values())[-1][0] if stack else ""


def translate(argument: object, env: Mapping[str, Value]) -> Value:
    if isinstance(argument, fx.Node):
        return env[argument.name]
    if isinstance(argument, (list, tuple)):
        return tuple(translate(item, env) for item in argument)
    if isinstance(argument, torch.dtype):
        return DType(dtype_name(argument))
    return argument


def as_it_is(builder: Builder, node: fx.Node, op: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Ref:
    """An operator without a form of its own: dims from the front, keywords that say something."""
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        raise NoRuleError(
            op,
            f"module {builder.module or 'the root'!r} runs an operator with several results or none, "
            "of which nothing is known",
            f"write its canonical form: @autoplan.trace.form({op!r})",
        )
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        raise NoRuleError(
            op,
            f"module {builder.module or 'the root'!r} draws random numbers by it, which ranks that hold parts of a "
            "tensor would draw otherwise than one device, and replicas otherwise than one another",
            "draw by dropout, rand_like, randn_like or bernoulli of a tensor, or hand the numbers in with the batch",
        )
    if not op.startswith(ATEN):
        return builder.emit(op, *args, kwargs=tuple(sorted(kwargs.items())))
    schema = node.target._schema.arguments
    rank = next((len(builder.shape(arg)) for arg in args if isinstance(arg, Ref)), 0)
    given = tuple(from_front(s.name, arg, rank) for s, arg in zip(schema, args, strict=False))
    kept = tuple((key, from_front(key, kwargs[key], rank)) for key in sorted(kwargs) if kwargs[key] is not None)
    return builder.emit(op, *given, kwargs=kept)


def from_front(name: str, argument: Value, rank: int) -> Value:
    if name not in DIMS or rank == 0:
        return argument
    if isinstance(argument, int):
        return positive(argument, rank)
    if isinstance(argument, tuple):
        return tuple(positive(d, rank) if isinstance(d, int) else d for d in argument)
    return argument


def check_values_unread(node: fx.Node, op: torch._ops.OpOverload, module: str) -> None:
    """Sizes and branches that follow from a tensor's values are none of the graph's.

    An operator's tags say what it may do: a one-hot encoding that is told its classes has a fixed shape all the same.
    """
    result = node.meta.get("val")
    several = [one for one in (result if isinstance(result, (list, tuple)) else [result]) if one is not None]
    told = all(isinstance(one, torch.Tensor) for one in several)
    open_size = told and any(not isinstance(size, int) for one in several for size in one.shape)
    by_tag = torch.Tag.dynamic_output_shape in op.tags and not (told and len(several) == 1)
    if torch.Tag.data_dependent_output in op.tags or by_tag or open_size:
        remedy = "write it without reading the values: a fixed size and a mask for a shape, torch.where for a branch"
        if any(argument.name == "output_size" for argument in op._schema.arguments):
            remedy = "say how large the result is: output_size=…, to which the numbers add up in every batch"
        cause = "it makes a number or a shape that depends on a tensor's values"
        raise TraceError(f"{op} in module {module or 'the root'!r}", cause, remedy)


def check_contiguous(node: fx.Node, module: str) -> None:
    """TraceError where strides walk over memory in another order than its tensor's, which a graph doesn't hold."""
    read = node.args[0]
    value = read.meta.get("val") if isinstance(read, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_contiguous() or value.storage_offset():
        raise TraceError(
            f"torch.as_strided in module {module or 'the root'!r}",
            "what it reads doesn't lie contiguously in memory of its own",
            "call .contiguous() before it, or write it by unfold, diagonal or indexing",
        )


def result_of(program: ExportedProgram, env: Mapping[str, Value]) -> str:
    outputs = [s for s in program.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    result = env.get(outputs[0].arg.name) if len(outputs) == 1 else None
    if not isinstance(result, Ref):
        raise TraceError("the model's output", "it is not one tensor", "return one tensor, or give loss_fn")
    return result.name
