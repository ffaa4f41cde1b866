"""Whether a forward tells the layers of a list apart by where they stand, read from its source.

Such a forward (every fourth layer is special; a residual scaled by the number of layers) must be traced at full depth,
for the two repeats that would be traced may well be alike.
"""

import ast
import inspect
import textwrap
from collections.abc import Container, Iterator

from torch import nn


def tells_apart(holder: nn.Module, name: str, known: Container[str] = ()) -> bool:
    """Whether the forward of the module that holds list ``name`` reads the list's length, or does anything with the
    index it enumerates it by, but for reading an attribute with an entry a child.

    known  names of such attributes; what they hold tells children apart beforehand (``finding.kinds_of``)
    """
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(type(holder).forward)))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # made at run time: there is no source to read
        return False
    if any(called(node, "len") and mentions(node, name) for node in ast.walk(tree)):
        return True
    indices = {index for loop in ast.walk(tree) for index in enumerated(loop, name)}
    subscripts = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    harmless = {id(node.slice) for node in subscripts if names(node.value, known)}
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return any(node.id in indices and id(node) not in harmless for node in read)


def names(value: ast.AST, known: Container[str]) -> bool:
    """Whether an expression is one of these attributes."""
    return isinstance(value, ast.Attribute) and value.attr in known


def enumerated(loop: ast.AST, name: str) -> Iterator[str]:
    """The index variable of ``for index, layer in enumerate(self.<name>)``."""
    if not isinstance(loop, (ast.For, ast.comprehension)) or not isinstance(loop.target, ast.Tuple):
        return
    index = loop.target.elts[0]
    if called(loop.iter, "enumerate") and mentions(loop.iter, name) and isinstance(index, ast.Name):
        yield index.id


def called(node: ast.AST, function: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == name for n in ast.walk(node))
