"""What a graph changes in place of what a model or a batch holds: buffers may change, nothing else."""

from collections.abc import Callable, Iterable, Mapping

from torch import fx, nn
from torch.export import ExportedProgram

from autoplan.errors import TraceError
from autoplan.ir.graph import UPDATE_BUFFER, Node
from autoplan.trace.builder import Value
from autoplan.trace.direct import alone


def changed_buffers(
    program: ExportedProgram, named: Callable[[str], str], entered: Mapping[str, Value], env: Mapping[str, Value]
) -> dict[str, Value]:
    """The value after forward of each buffer that it changes, by the user's name.

    named    the user's name of what the program holds
    entered  the value of each of the graph's inputs when it entered, by node
    env      the value that each node has in the end: another one where it was changed in place

    TraceError where forward changes a parameter or an input of the batch.
    """
    signature = program.graph_signature
    held = {name: named(target) for name, target in signature.inputs_to_parameters.items()}
    held |= {name: name for name in signature.user_inputs if isinstance(name, str)}
    fixed = [name for placeholder, name in held.items() if env[placeholder] is not entered[placeholder]]
    fixed += [named(target) for target in signature.parameters_to_mutate.values()]
    for name in (*fixed, *signature.user_inputs_to_mutate.values()):
        cause = "forward changes it in place, and of a model's state buffers alone may change"
        raise TraceError(name, cause, "compute the new value outside of forward, or keep it in a buffer")
    buffers = signature.inputs_to_buffers.items()
    changed = {named(to): env[node] for node, to in buffers if env[node] is not entered[node]}
    return changed | {named(target): env[node] for node, target in signature.buffers_to_mutate.items()}


def check_alone(place: fx.Node, region: fx.Node, module: str) -> None:
    """TraceError where what a region changes in place has another view that is read after it."""
    if not alone(place, region):
        cause = f"a tensor that it changes in place in module {module or 'the root'!r} has another view, which is read"
        raise TraceError("torch.no_grad()", cause, "write the new value to the tensor itself, or make it anew")


def check_names(model: nn.Module, nodes: Iterable[Node]) -> None:
    """TraceError where a buffer that forward changes has several names: a program keeps a buffer under one, and what
    it saves would lack the others."""
    held = dict(model.named_buffers(remove_duplicate=False))
    for name in (node.operands[0] for node in nodes if node.op == UPDATE_BUFFER):
        others = [other for other, tensor in held.items() if other != name and tensor is held.get(name)]
        if others:
            cause = f"forward changes it, and it is {others[0]}, too: a program keeps a changed buffer under one name"
            raise TraceError(name, cause, "give each module a buffer of its own, or share one module alone")
