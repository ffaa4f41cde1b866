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
    return getattr(node.target, "__module__", None) in ("_operator", "math")


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
    if node.target is operator.getitem or op in DROPPED or op == GRAD_REGION or op in known:
        return True
    if op == AUTOCAST_REGION:
        return node.args[2] is False
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if in_place(node.target):
        return out_of_place(op) is not None and unshared(node)
    return not node.target._schema.is_mutable


def in_place(op: torch._ops.OpOverload) -> bool:
    """Whether an operator changes its first operand and gives it back: add_, relu_."""
    name = op._schema.name
    return name.endswith("_") and not name.endswith("__") and op._schema.is_mutable


def out_of_place(op: str) -> str | None:
    """ "aten.relu_.default" -> "aten.relu.default", where there is one."""
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if packet is None or overload not in packet.overloads():
        return None
    return f"{namespace}.{name.removesuffix('_')}.{overload}"


def unshared(node: fx.Node) -> bool:
    """Whether nothing else sees what an in-place operator changes: its operand is no view, or one of slices that are
    written alone, and what it is a view of has no views that are read."""
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    if is_view(changed) and node.users:
        return False
    base = base_of(changed)
    return not is_view(base) and all(is_written(user) for user in base.users if is_view(user))


def base_of(node: fx.Node) -> fx.Node:
    """What a slice of slices is taken from; the node itself where it is none."""
    while str(node.target) in SCATTERS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def is_written(view: fx.Node) -> bool:
    """Whether a slice is there to be assigned to, and nothing reads it."""
    if str(view.target) not in SCATTERS:
        return False
    return all(is_written(user) or (writes(user, view) and not user.users) for user in view.users)


def writes(node: fx.Node, view: fx.Node) -> bool:
    """Whether a node changes a view in place, and reads it nowhere else."""
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and in_place(op) and node.args[0] is view and view not in node.args[1:]


def is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or in_place(node.target):
        return False
    return any(r.alias_info is not None for r in node.target._schema.returns)
