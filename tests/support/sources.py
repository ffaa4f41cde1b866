"""What source files say, each read once a process: their imports, and the definitions in their docstrings.

Facts alone are kept: the trees of all files would be some million objects.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Source:
    """One file.

    docstring   of the module; "" where it has none
    definition  its first sentence
    classes     (name, definition) of each at the top
    imports     (module, name) of each import, name "" where a module is imported whole
    relative    lines of relative imports; ``inside``: of those that stand in functions
    """

    docstring: str
    definition: str
    classes: tuple[tuple[str, str], ...]
    imports: tuple[tuple[str, str], ...]
    relative: tuple[int, ...]
    inside: tuple[int, ...]


@functools.cache
def source_of(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return Source(
        docstring=ast.get_docstring(tree) or "",
        definition=definition(tree),
        classes=tuple((node.name, definition(node)) for node in tree.body if isinstance(node, ast.ClassDef)),
        imports=tuple(pair for node in nodes for pair in imports_of(node)),
        relative=tuple(node.lineno for node in found if node.level or not node.module),
        inside=tuple(
            node.lineno for function in nodes if isinstance(function, FUNCTIONS) for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
    )  # fmt: skip


def imports_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.module or "", alias.name) for alias in node.names)


def definition(node: ast.Module | ast.ClassDef) -> str:
    """The first sentence of a docstring, on one line and without its full stop."""
    first = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".").replace("``", "`")
