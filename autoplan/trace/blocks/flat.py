"""The traced model before it is cut into a chain: one list of canonical nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.ir.graph import Buffer, Node, Parameter, Typed


@dataclass(frozen=True)
class Tree:
    """The modules of the user's model, as far as cutting and naming need them.

    classes   class name of the module at each path
    builtin   paths whose class is one of torch.nn's own
    lists     paths of ModuleLists and Sequentials, outermost first
    repeating those of ``lists`` that hold at least two children of one kind
    owned     the parameters' names below each path
    """

    classes: Mapping[str, str]
    builtin: frozenset[str]
    lists: tuple[str, ...]
    repeating: frozenset[str]
    owned: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Flat:
    """A whole program in one scope: parameters and buffers stand under the names the user's model has for them.

    counts    nodes that count valid targets over the whole batch
    output    the loss, or the model's result at inference
    """

    name: str
    batch: tuple[Typed, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    output: str
    tree: Tree
    notes: tuple[str, ...] = ()
