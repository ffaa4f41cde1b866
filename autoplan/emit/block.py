"""A lowered block -> the source of one nn.Module class: a line for each operator, and one for each collective."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from autoplan.emit.calls.biased_products import biased
from autoplan.emit.calls.column_products import NO_LINES, ColumnProducts, Lines, RowProduct
from autoplan.emit.calls.token_flight import GOES_BACK, SETS_OUT, given_source, returned_source, sent_source
from autoplan.emit.naming import module_attributes
from autoplan.emit.random_arguments import (
    FIRST,
    attention_drawn_over,
    dropout_axes,
    most_dropouts,
    random_arguments,
    random_function,
)
from autoplan.emit.readable import readable_names
from autoplan.emit.size_names import Names, Size, Sized
from autoplan.emit.source import (
    collective_comment,
    commented,
    identifier,
    literal,
    placement,
    shape_comment,
    shape_text,
    size_text,
)
from autoplan.emit.spelling import operand, spell
from autoplan.emit.unmoved_values import MIXTURE, also_named, unmoved, unmoved_in
from autoplan.ir.graph import Argument, free_name
from autoplan.ir.mesh import MICROBATCH, MICROBATCHES
from autoplan.ir.randomness import ATTENTION, BY_RANK, KEY, is_random, random_operators
from autoplan.ir.typed_program import (
    Collective,
    Compute,
    Lowered,
    LoweredBlock,
    Move,
    Statement,
    TokenFlight,
    TypedValue,
)
from autoplan.runtime.parallel.seeding import DRAWN_OVER

GROUPED_ATTENTION = "autoplan.grouped_query_attention"
GATHERS = ("all_gather", "all_gather_invariant")
"""Steps that say whether a compiled segment keeps what they give."""

KEEPS = MappingProxyType({True: {"keep": "keeps(self)"}, False: {"keep_activated": "keeps(self)"}})
"""How a mixture is told to compute again all that it keeps, or else its activation."""


@dataclass(frozen=True)
class Scope:
    """How values are written where a body stands.

    names   value name -> source ("self.q_weight", "hidden")
    ranks   value name -> number of dims
    sizes   literals that follow the inputs' sizes, as source
    live    axes that comments speak of
    random  value name -> further arguments of an operator that drops elements
    inside  value name -> what the operator that gives it sends, as a comment
    """

    names: Mapping[str, str]
    ranks: Mapping[str, int]
    live: frozenset[str]
    random: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    inside: Mapping[str, str] = field(default_factory=dict)
    sizes: Names = field(default_factory=lambda: Names((), ()))

    def comment(self, value: TypedValue) -> str:
        """What is sent inside the value's operator, and how the value lies."""
        said = (self.inside.get(value.name, ""), shape_comment(value, self.live))
        return "; ".join(part for part in said if part)

    def __call__(self, name: str) -> str:
        return self.names[name]

    def literal(self, argument: Argument) -> str:
        return literal(argument, self, self.sizes)


def axis_source(axis: str) -> str:
    """The attribute that holds an axis or a group of several: "dp,tp" is ``self.dp_tp``, "tp.0" is ``self.tp_0``."""
    return "self." + axis.replace(",", "_").replace(".", "_")


def emit_body(
    statements: Sequence[Statement], scope: Scope, indent: int, shared: Lines = NO_LINES,
    again: frozenset[str] = frozenset(), keeps: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """The lines of statements.

    shared  statements that are written on one line
    again   values that may be dropped and computed again in the backward (``runtime.memory.selective``)
    keeps   of a mixture, which says itself what of it is computed again, the arguments that tell it
    """
    lines, same, sent = [], {**unmoved(statements), **shared.same}, set[str]()
    flying = {each.mixture for flights in shared.flights.values() for each in flights}
    made = {s.value.name: s for s in statements if isinstance(s, Compute)}
    for statement in statements:
        name = statement.value.name
        for flight in shared.flights.get(name, ()):
            told = keeps.get(flight.mixture, {})
            lines.append(emit_flight(made[flight.mixture], flight, scope, indent, flight.mixture in sent, told))
            sent.add(flight.mixture)
        if name in same:
            continue
        if name in shared.column:
            lines += emit_column(shared.column[name], scope, indent)
        elif name in shared.elsewhere:
            continue
        elif name in flying:
            lines.append(commented(returned_source(scope(name)), scope.comment(statement.value), indent))
        elif name in shared.rows:
            lines.append(emit_row(shared.rows[name], scope, indent))
        elif name in keeps and isinstance(statement, Compute):
            lines.append(emit_compute(statement, scope, indent, keeps[name]))
        elif name in again:
            lines.append(emit_again(statement, scope, indent, name in shared.gathered))
        elif isinstance(statement, Move):
            lines += emit_move(statement, scope, indent, name in shared.gathered, name in shared.in_place)
        elif name in shared.fused:
            lines.append(emit_compute(biased(statement, statements, shared.fused), scope, indent))
        else:
            lines.append(emit_compute(statement, scope, indent))
    return lines


def emit_flight(
    compute: Compute, flight: TokenFlight, scope: Scope, indent: int, sent: bool, keeps: Mapping[str, str]
) -> str:
    """The line of a mixture's first call, or where tokens are ``sent`` of its second."""
    local = scope(flight.mixture)
    if sent:
        return commented(given_source(compute, local, scope.literal, keeps), GOES_BACK, indent)
    axes = ", ".join(axis_source(axis) for axis in compute.body_groups)
    return commented(sent_source(compute, flight, local, scope.literal, axes), SETS_OUT, indent)


def emit_column(call: ColumnProducts, scope: Scope, indent: int) -> list[str]:
    """What each result is, and the call that gives them."""
    said, axis, results = "", "", [scope(name) for name in call.results]
    if call.move is not None:
        step = call.move.collectives[0]
        said = f"backward: {step.backward} {size_text(step.backward_bytes)}, under the weights' gradients"
        gather = f"{step.forward} {size_text(step.forward_bytes)}"
        if call.again:
            said = f"again in a backward that recomputes; {said}"
        if call.chunks > 1:
            gather = chunks_text(step.forward, step.forward_bytes, call.chunks)
        if call.again or call.chunks > 1:
            said = f"forward: {gather}{', ' if call.again else '; '}{said}"
        axis = axis_source(step.axis)
    pairs = zip(results, call.products, strict=True)
    notes = [f"{' ' * indent}# {name} {scope.comment(product.value)}" for name, product in pairs]
    targets = ", ".join(results) if len(results) > 1 else f"({results[0]},)"
    return [*notes, commented(f"{targets} = {call.source(scope, axis)}", said, indent)]


def emit_row(call: RowProduct, scope: Scope, indent: int) -> str:
    """The line of a product in chunks and its sum."""
    (step,) = call.move.collectives
    said = [f"forward: {chunks_text(step.forward, step.forward_bytes, step.chunks)}"]
    if step.backward:
        said.append(f"backward: {chunks_text(step.backward, step.backward_bytes, step.chunks_back)}")
    code = f"{scope(call.move.value.name)} = {call.source(scope, axis_source(step.axis))}"
    return commented(code, "; ".join((*said, shape_comment(call.move.value, scope.live))), indent)


def chunks_text(kind: str, bytes: int, chunks: int) -> str:
    """ "all-gather 4 MiB in 4 chunks, under the product"."""
    return f"{kind} {size_text(bytes)} in {chunks} chunks, under the product"


def emit_again(statement: Statement, scope: Scope, indent: int, gathered: bool = False) -> str:
    """One line: the statement as a function of the local values that it reads. ``gathered``: as of ``emit_move``."""
    said = [scope.comment(statement.value)]
    if isinstance(statement, Move):
        source = scope(statement.source)
        for step in statement.collectives:
            source = collective_source(step, source, scope, again=True)
        said = [*(collective_comment(step, there_alone=gathered) for step in statement.collectives), *said]
    else:
        source = expression(statement, scope)
    read = ", ".join(dict.fromkeys(name for name in map(scope, statement.reads) if not name.startswith("self.")))
    code = f"{scope(statement.value.name)} = recomputable(self, lambda {read}: {source}, {read})"
    return commented(code, "; ".join(s for s in said if s), indent)


def emit_compute(
    compute: Compute, scope: Scope, indent: int, further: Mapping[str, str] = MappingProxyType({})
) -> str:
    """``further``: arguments by name, as source."""
    code = f"{scope(compute.value.name)} = {expression(compute, scope, further)}"
    return commented(code, scope.comment(compute.value), indent)


def expression(compute: Compute, scope: Scope, further: Mapping[str, str] = MappingProxyType({})) -> str:
    args = [scope.literal(a) for a in compute.args]
    kwargs = {**{key: scope.literal(value) for key, value in compute.kwargs if key != BY_RANK}, **further}
    operands = compute.reads
    rank = scope.ranks[operands[0]] if operands else 0
    if is_random(compute):
        source = spell(random_function(compute), args, {**kwargs, **scope.random[compute.value.name]}, rank)
    elif compute.body:
        axes = ", ".join(axis_source(axis) for axis in compute.body_groups)
        source = spell(f"autoplan.{compute.body}", args, {**kwargs, "axes": f"({axes},)"}, rank)
    else:
        source = spell(function_of(compute), args, kwargs, rank)
    if compute.divisor == 1:
        return source
    whole = isinstance(ast.parse(source, mode="eval").body, ast.Call)
    return f"{source if whole else f'({source})'} / {operand(scope.literal(compute.divisor))}"


def function_of(compute: Compute) -> str:
    """Its operator; in float32, and under a mask, a function of the runtime's in place of an attention of grouped
    queries."""
    grouped = compute.op == ATTENTION and dict(compute.kwargs).get("enable_gqa") is True
    own = compute.value.type.dtype == "float32" or len(compute.reads) > 3
    return GROUPED_ATTENTION if grouped and own else compute.op


def emit_move(
    move: Move, scope: Scope, indent: int, gathered: bool = False, in_place: bool = False
) -> list[str]:
    """One line for each collective; a relabelling that needs none is an assignment.

    gathered  for products that sum the gradient themselves (``ColumnProducts``)
    in_place  the first may take its source's memory (``Lines``)
    """
    target, source = scope(move.value.name), scope(move.source)
    if not move.collectives:
        return [" " * indent + f"{target} = {source}"]
    lines = []
    for number, step in enumerate(move.collectives):
        last = number == len(move.collectives) - 1
        said = [collective_comment(step, there_alone=gathered), shape_comment(move.value, scope.live) if last else ""]
        code = f"{target} = {collective_source(step, source, scope, in_place and number == 0)}"
        lines.append(commented(code, "; ".join(s for s in said if s), indent))
        source = target
    return lines


def collective_source(
    step: Collective, source: str, scope: Scope, in_place: bool = False, again: bool = False
) -> str:
    """The call of a step. ``again``: of a value that is dropped and computed again."""
    arguments = [*step.dims, *([step.shape] if step.shape else []), *([step.spec] if step.spec else [])]
    last = ", in_place=True" if in_place else ", keep=False" if again and step.op in GATHERS else ""
    return f"{step.op}({source}, {''.join(f'{scope.literal(a)}, ' for a in arguments)}{axis_source(step.axis)}{last})"


def emit_block(
    lowered: Lowered, index: int, where: str, live: frozenset[str], reserved: frozenset[str],
    inside: Mapping[str, str], programs: Sequence[Sized] = (),
) -> list[str]:  # fmt: skip
    """The class of a block.

    index         which of the program's blocks
    where         what it stands for, "model.layers.0 … 39, on mesh dp=4 tp=8"
    live          axes that comments speak of
    reserved      names that local variables may not take: the functions that the program imports
    inside        what its operators send, by the value that they give
    programs      at which sizes were told
    """
    block = lowered.blocks[index]
    axes = map(axis_source, block_axes(block, live))
    attributes = module_attributes([v.name for v in (*block.parameters, *block.buffers)], axes)
    names, ranks = block_names(block, attributes, reserved | {KEY})
    entering = (*block.inputs, *block.externals)
    sizes = Names(programs, [(names[v.name], v.local_shape) for v in entering])
    count = literal(lowered.mesh.size(MICROBATCH), names.__getitem__, sizes)
    scope = Scope(names, ranks, live, random_arguments(block, live, count), inside, sizes)
    lines = [f"class {block.name}(nn.Module):", f'    """{where}."""', ""]
    shared = Lines.of(block)
    lines += emit_init(block, attributes, live, most_dropouts(lowered), shared)
    selects = any(stage.selective for stage in lowered.stages)
    again = frozenset(block.again if selects else ())
    arguments = ", ".join(["self", *(scope(v.name) for v in entering), *keywords_of(lowered, block)])
    lines += ["", f"    def forward({arguments}):"]
    lines += [f"        # {scope(v.name)} {shape_comment(v, live)}" for v in entering]
    mixtures = [s.value.name for s in block.body if selects and isinstance(s, Compute) and s.op == MIXTURE]
    keeps = {name: KEEPS[name in again] for name in mixtures}
    body = emit_body(block.body, scope, 8, shared, again, keeps)
    lines += [*sizes.lines(8), *body]
    lines.append(f"        return {', '.join(scope(v.name) for v in block.outputs)}")
    return lines


def keywords_of(lowered: Lowered, block: LoweredBlock) -> list[str]:
    """What a stage tells a block beside its values: the key of random numbers, how many microbatches there are."""
    random = bool(random_operators(block))
    divided = any(isinstance(s, Compute) and isinstance(s.divisor, Size) for s in block.body)
    counted = divided or (random and isinstance(lowered.mesh.size(MICROBATCH), Size))
    return [*([KEY] if random else []), *([MICROBATCHES] if counted else [])]


def block_names(
    block: LoweredBlock, attributes: Mapping[str, str], reserved: frozenset[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """How each value is written, and its number of dims."""
    names = {value.name: f"self.{attributes[value.name]}" for value in (*block.parameters, *block.buffers)}
    produced = [*block.inputs, *block.externals, *(s.value for s in block.body)]
    same = unmoved_in(block)
    made = (v.name for v in produced if v.name not in names and v.name not in same)
    names = also_named(names | local_names(made, reserved, readable_names(block)), same)
    ranks = {v.name: len(v.local_shape) for v in (*produced, *block.parameters, *block.buffers)}
    return names, ranks


def local_names(
    names: Iterable[str], reserved: frozenset[str], readable: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Distinct local variables for values, none of them hiding a function that the program calls.

    readable  the name that a value should have, where it isn't its own
    """
    chosen: dict[str, str] = {}
    taken = set(reserved)
    for name in dict.fromkeys(names):
        chosen[name] = free_name(identifier(readable.get(name, name)), taken, first=2)
        taken.add(chosen[name])
    return chosen


def emit_init(
    block: LoweredBlock, attributes: Mapping[str, str], live: frozenset[str], most_dropouts: int,
    shared: Lines = NO_LINES,
) -> list[str]:  # fmt: skip
    lines = ["    def __init__(self, parameters: Parameters, mesh: dict[str, MeshAxis]) -> None:"]
    lines.append("        super().__init__()")
    lines += [f'        {axis_source(axis)} = mesh["{axis}"]' for axis in block_axes(block, live)]
    if random_operators(block):
        code = f"self.{FIRST} = {most_dropouts} * parameters.number"
        lines.append(commented(code, "so that no two segments drop alike", 8))
    if (drawn := attention_drawn_over(block, live)) is not None:
        axes = ", ".join(map(axis_source, drawn))
        code = f"self.{DRAWN_OVER} = ({axes},)" if axes else f"self.{DRAWN_OVER} = ()"
        lines.append(commented(code, "from one seed, where this is compiled", 8))
    for names in (names for call in shared.column.values() for names in call.side_by_side):
        quoted = ", ".join(f'"{name}"' for name in names)
        lines.append(f"        parameters.side_by_side({quoted})")
    for value in block.parameters:
        code = f'self.{attributes[value.name]} = parameters("{value.name}")'
        lines.append(commented(code, parameter_comment(value, live), 8))
    for value in block.buffers:
        name = attributes[value.name]
        code = f'self.register_buffer("{name}", parameters.buffer("{value.name}"), persistent=False)'
        lines.append(commented(code, shape_comment(value, live), 8))
    return lines


def parameter_comment(value: TypedValue, live: frozenset[str]) -> str:
    """``[8192, 8192] -> [1024, 8192]   tp: Shard(0)``: whole, this rank's part where it is split, placement."""
    shapes = dict.fromkeys((shape_text(value.type.shape), shape_text(value.local_shape)))
    return f"{' -> '.join(shapes)}   {placement(value.layout, live)}".rstrip()


def block_axes(block: LoweredBlock, live: frozenset[str]) -> tuple[str, ...]:
    """The axes that a block's lines name."""
    return tuple(dict.fromkeys((*axes_used(block.body), *dropout_axes(block, live))))


def axes_used(statements: Sequence[Statement]) -> tuple[str, ...]:
    """The axes whose groups the statements name, in order of first use."""
    used: list[str] = []
    for statement in statements:
        if isinstance(statement, Move):
            used += [step.axis for step in statement.collectives]
        else:
            used += statement.body_groups
    return tuple(dict.fromkeys(used))


