"""Autograd's own account of a traced model, and the graph's: both have to train the same parameters."""

from collections.abc import Collection, Container, Iterable
from dataclasses import replace

from torch import Tensor, nn

from autoplan.errors import InputsError, TraceError
from autoplan.ir.graph import Node, Parameter
from autoplan.trace.blocks import Flat

NAMED = 3  # tables that a note names, before it counts the others
STOPS = ("aten.detach.default", "autoplan.uniform")  # what they read gets no gradient through them


def check_trained(flat: Flat, trained: Collection[str]) -> None:
    """TraceError where the graph would train other parameters than autograd: something in forward was left out.

    trained  names of the parameters that autograd has gradients for
    """
    sources = {p.name: p.source for p in flat.parameters if p.trainable}
    found = {sources[name] for name in reached(flat.nodes, flat.output) if name in sources}
    for name in sorted(set(trained) ^ found):
        does, would = ("has a", "give none") if name in trained else ("has no", "give one")
        raise TraceError(
            f"parameter {name}",
            f"it {does} gradient on one device, and the traced program would {would}",
            "write what stops gradients there as .detach() or torch.no_grad() around operators on tensors",
        )


def without_gradient_frozen(flat: Flat) -> tuple[Parameter, ...]:
    """The parameters, those frozen that no gradient flows back to: torch's optimizers leave alone what has none, and
    one of zeros, as a product with others would give, would be decayed."""
    met = reached(flat.nodes, flat.output)
    return tuple(replace(p, trainable=p.trainable and p.name in met) for p in flat.parameters)


def reached(nodes: Iterable[Node], output: str) -> set[str]:
    """What a gradient of the output flows back to."""
    met = {output}
    for node in reversed(tuple(nodes)):
        if node.name in met and node.type.floating and node.op not in STOPS:
            met.update(node.operands)
    return met


def sparse_notes(parameters: Iterable[Parameter], sparse: Container[str]) -> tuple[str, ...]:
    """What a report says of trained tables whose gradients are asked for as sparse ones."""
    found = [p.source for p in parameters if p.trainable and p.name in sparse]
    if not found:
        return ()
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    told = "a step updates every row, and momentum or weight decay moves rows that no id names, as SparseAdam doesn't"
    return (f"gradients of {', '.join(found[:NAMED])}{more} are dense, where sparse=True asks for sparse ones: {told}",)


def check_loss(loss: Tensor, model: nn.Module) -> None:
    """InputsError for a loss that no parameter gets a gradient from, of a model that has any."""
    if loss.requires_grad or next(model.parameters(), None) is None:
        return
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    cause = "no parameter is trainable" if frozen else "its loss carries no gradient: it is detached from parameters"
    remedy = "set requires_grad of those to train" if frozen else "return the loss itself, not a detached copy of it"
    raise InputsError(type(model).__name__, cause, remedy)


def check_strange(strange: Iterable[Tensor], model: nn.Module) -> None:
    """TraceError for a trainable tensor that is no parameter of the model: it would be written down as a constant."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for tensor in strange:
        name = names.get(id(tensor))
        if name is not None:
            raise TraceError(
                f"parameter {name}",
                "forward reaches it through a closure or a patched method, which a copy of the model doesn't have, and "
                "it would be a constant",
                "write what is patched as a module of its own, which holds the parameter",
            )
        raise TraceError(
            f"a trainable tensor of shape {tuple(tensor.shape)}",
            "the loss has a gradient for it, but it is no parameter of the model, and would be a constant",
            "register it as a parameter of a module, or set its requires_grad to False",
        )
