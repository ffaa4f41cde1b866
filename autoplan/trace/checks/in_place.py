"""Which parameters and buffers an exported graph changes in place, also inside of regions."""

from collections.abc import Iterator, Mapping

import torch
from torch import fx
from torch.export import ExportedProgram

from autoplan.trace.direct import is_view, region_body, region_of


def written(program: ExportedProgram) -> list[str]:
    """Their names, as the exported module has them, in the order in which they are first changed."""
    signature = program.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return list(dict.fromkeys(written_in(program.graph_module, held)))


def written_in(graph_module: fx.GraphModule, held: Mapping[str, str]) -> Iterator[str]:
    """held  the name of the parameter or buffer that a placeholder stands for"""
    known = dict(held)
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        at = region_body(node)
        if at is not None:
            body = region_of(node, graph_module)
            entering = [p.name for p in body.graph.nodes if p.op == "placeholder"]
            names = [known.get(arg.name) if isinstance(arg, fx.Node) else None for arg in node.args[at + 1 :]]
            yield from written_in(body, {p: n for p, n in zip(entering, names, strict=True) if n is not None})
        elif isinstance(node.target, torch._ops.OpOverload):
            yield from (known[operand.name] for operand in changed_by(node) if operand.name in known)
            source = node.args[0] if node.args else None
            if is_view(node) and isinstance(source, fx.Node) and source.name in known:
                known[node.name] = known[source.name]


def changed_by(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that an operator writes to."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for index, argument in enumerate(node.target._schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            yield value
