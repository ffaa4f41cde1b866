"""Whether a forward tells the layers of a list apart by where they stand, read from its source.

Such a forward (every fourth layer is special; a residual scaled by the number of layers) must be traced at full depth,
for the two repeats that would be traced may well be alike.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from torch import nn


def tells_apart(holder: nn.Module, name: str) -> bool:
    """Whether the forward of the module that holds list ``name`` reads the list's length, or computes with, or
    compares, the index it enumerates it by. Indexing by it is fine: what is indexed is compared on the graph."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(type(holder).forward)))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # made at run time: there is no source to read
        return False
    if any(called(node, "len") and mentions(node, name) for node in ast.walk(tree)):
        return True
    indices = {index for loop in ast.walk(tree) for index in enumerated(loop, name)}
    computed = [node for node in ast.walk(tree) if isinstance(node, (ast.Compare, ast.BinOp))]
    return any(isinstance(n, ast.Name) and n.id in indices for node in computed for n in ast.walk(node))


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
