"""Which exported programs are read as they come, and which are made functional by torch first.

torch's own pass (``run_decompositions``) takes as long as the export, and loses where gradients stop. It is left out
where every operator has a canonical form or none of its own, and where what is changed in place has no other view.
"""

import operator
from collections.abc import Collection, Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from autoplan.errors import TraceError

GRAD_REGION, AUTOCAST_REGION = "wrap_with_set_grad_enabled", "wrap_with_autocast"
DROPPED = frozenset({
    "aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default", "aten._assert_async.msg",
    "aten._assert_scalar.default",
})  # fmt: skip

OUT = "out"  # the keyword of an operator that writes its result there
SCATTERS = {"aten.slice.Tensor": "aten.slice_scatter.default", "aten.select.int": "aten.select_scatter.default"}
"""Views that a model assigns to, x[1:] = y, and the operators that give the whole with such a part replaced."""


def functional(program: ExportedProgram, known: Collection[str]) -> ExportedProgram:
    """The program in a form that ``convert`` reads. ``known``: operators that have a canonical form.

    TraceError where torch's pass is needed and would lose a region without gradients.
    """
    nodes = list(all_nodes(program.graph_module))
    if all(readable(node, known) for node in nodes):
        return program
    regions = [node for node in nodes if str(node.target) == GRAD_REGION and node.args[0] is False]
    carrying = reached_by_parameters(program) if regions else set()
    for region in regions:
        if any(isinstance(arg, fx.Node) and arg.name in carrying for arg in region.args[2:]):
            raise TraceError(
                "torch.no_grad() on activations",
                "beside an operator that only torch's own pass can spell out",
                "use .detach() instead, or write that operator in simpler ones",
            )
    return program.run_decompositions({})


def all_nodes(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes that run operators, those in regions included, and those that nothing comes of left out."""
    idle = idle_nodes(graph_module.graph)
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node not in idle:
            yield node
            if region_body(node) is not None:
                yield from all_nodes(region_of(node, graph_module))


def idle_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that only assertions read, or nobody: ``torch._check(lengths.max().item() <= 512)`` computes nothing."""
    idle: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (str(node.target) in DROPPED or pure(node)) and idle.issuperset(node.users):
            idle.add(node)
    return idle


def pure(node: fx.Node) -> bool:
    """Whether a node does nothing but give its result: an operator, or Python's own on what operators gave."""
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    named = getattr(node.target, "__name__", "")
    return getattr(node.target, "__module__", None) in ("_operator", "math") or named.startswith("sym_")


def region_body(node: fx.Node) -> int | None:
    """Where the body stands among a region's arguments; None for any other node."""
    return {GRAD_REGION: 1, AUTOCAST_REGION: 4}.get(str(node.target))


def region_of(node: fx.Node, graph_module: fx.GraphModule) -> fx.GraphModule:
    at = region_body(node)
    assert at is not None
    body = node.args[at]
    assert isinstance(body, fx.Node) and isinstance(body.target, str)
    found = graph_module.get_submodule(body.target)
    assert isinstance(found, fx.GraphModule)
    return found


def reached_by_parameters(program: ExportedProgram) -> set[str]:
    """Names of the nodes of the outermost graph that a parameter reaches."""
    reached = set(program.graph_signature.inputs_to_parameters)
    for node in program.graph.nodes:
        if any(source.name in reached for source in node.all_input_nodes):
            reached.add(node.name)
    return reached


def readable(node: fx.Node, known: Collection[str]) -> bool:
    op = str(node.target)
    if node.target in (operator.getitem, operator.add) or op in DROPPED or op == GRAD_REGION or op in known:
        return True
    if op == AUTOCAST_REGION:
        return node.args[2] is False
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if in_place(node.target):
        return out_of_place(op) is not None and unshared(node)
    return not node.target._schema.is_mutable


def in_place(op: torch._ops.OpOverload) -> bool:
    """Whether an operator changes one operand and gives it back: add_, relu_, or div(x, y, out=x)."""
    name = op._schema.name
    changes = name.endswith("_") and not name.endswith("__")
    return op._schema.is_mutable and (changes or OUT in (argument.name for argument in op._schema.arguments))


def place_of(node: fx.Node) -> fx.Node:
    """What an operator in place changes."""
    place = node.kwargs.get(OUT) or node.args[0]
    assert isinstance(place, fx.Node)
    return place


def out_of_place(op: str) -> str | None:
    """ "aten.relu_.default" -> "aten.relu.default", where there is one that takes the same: pow_.Scalar is
    pow.Tensor_Scalar, div.out is div.Tensor."""
    namespace, name, overload = op.split(".")
    owner = getattr(torch.ops, namespace)
    packet = getattr(owner, name.removesuffix("_"), None)
    if packet is None:
        return None
    wanted = taken(getattr(getattr(owner, name), overload))
    plain = [one for one in packet.overloads() if not getattr(packet, one)._schema.is_mutable]
    alike = [one for one in plain if taken(getattr(packet, one)) == wanted]
    chosen = overload if overload in alike else alike[0] if alike else None
    return None if chosen is None else f"{namespace}.{name.removesuffix('_')}.{chosen}"


def taken(op: torch._ops.OpOverload) -> list[tuple[str, str]]:
    """What an operator reads: the name of each argument, and its type but for what is written to."""
    arguments = op._schema.arguments
    return [(argument.name, str(argument.type)) for argument in arguments if argument.name != OUT]


def unshared(node: fx.Node) -> bool:
    """Whether nothing reads what an in-place operator changes but anew."""
    return alone(place_of(node), node)


def alone(place: fx.Node, change: fx.Node) -> bool:
    """Whether nothing reads a place's memory but anew, after a node has changed it: it is no view, one of slices, or a
    view of what nobody else sees; and no other view or earlier result of it is read after the change."""
    path = [place]
    while (source := part_of(path[-1])) is not None:
        path.append(source)
    others = {alias for node in path for alias in aliases(node)} - {change, *path}
    own = not (is_view(path[-1]) or is_view_of_region(path[-1])) or unseen(path[-1])
    return own and not any(read_across(alias, change) for alias in others)


def part_of(node: fx.Node) -> fx.Node | None:
    """What a node is a slice of, or changed in place, in a region too: what follows it in the graph reads both by one
    memory."""
    if node.target is operator.getitem:
        return changed_by_region(node)
    if isinstance(node.target, torch._ops.OpOverload) and in_place(node.target):
        return place_of(node)
    source = node.args[0] if str(node.target) in SCATTERS else None
    return source if isinstance(source, fx.Node) else None


def changed_by_region(result: fx.Node) -> fx.Node | None:
    """What a region was given, where this result of it is that changed in place."""
    source = made_in_region(result)
    while source is not None and str(source.target) not in SCATTERS and (before := part_of(source)) is not None:
        source = before
    return argument_of(result, source) if source is not None else None


def is_view_of_region(result: fx.Node) -> bool:
    """Whether a result of a region is a view of what the region was given."""
    source = made_in_region(result)
    while source is not None and (is_view(source) or part_of(source) is not None):
        before = part_of(source) or source.args[0]
        source = before if isinstance(before, fx.Node) else None
    return source is not None and argument_of(result, source) is not None and changed_by_region(result) is None


def made_in_region(result: fx.Node) -> fx.Node | None:
    """The node in a region's body that gives one of its results."""
    region = result.args[0] if result.target is operator.getitem else None
    if not isinstance(region, fx.Node) or region_body(region) is None:
        return None
    around = region.graph.owning_module
    assert around is not None
    body = region_of(region, around)
    (output,) = (node for node in body.graph.nodes if node.op == "output")
    (given,), index = output.args, result.args[1]
    made = given[index] if isinstance(given, (tuple, list)) and isinstance(index, int) else None
    return made if isinstance(made, fx.Node) else None


def argument_of(result: fx.Node, inside: fx.Node) -> fx.Node | None:
    """The node outside that stands behind a placeholder of the region."""
    region = result.args[0]
    assert isinstance(region, fx.Node)
    at = region_body(region)
    entering = [node for node in inside.graph.nodes if node.op == "placeholder"]
    if at is None or inside not in entering:
        return None
    found = region.args[at + 1 + entering.index(inside)]
    return found if isinstance(found, fx.Node) else None


def aliases(node: fx.Node) -> list[fx.Node]:
    """What shares a node's memory: its views, parts of them, and what operators that change it give back."""
    found = [u for u in node.users if is_view(u) or u.target is operator.getitem or part_of(u) is node]
    regions = (u for u in node.users if region_body(u) is not None)
    return found + [result for region in regions for result in region.users if part_of(result) is node]


def read_across(alias: fx.Node, change: fx.Node) -> bool:
    """Whether a node that shares the memory is there before a change, and read after it."""
    if change < alias:
        return False
    shared = aliases(alias)
    return any(change < user for user in alias.users) or any(read_across(one, change) for one in shared)


def unseen(view: fx.Node) -> bool:
    """Whether a view is all that is read of what an operator computed."""
    while is_view(view):
        source = view.args[0]
        if not isinstance(source, fx.Node) or len(source.users) > 1:
            return False
        view = source
    return view.op == "call_function" and isinstance(view.target, torch._ops.OpOverload)


def is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or in_place(node.target):
        return False
    return any(r.alias_info is not None for r in node.target._schema.returns)
