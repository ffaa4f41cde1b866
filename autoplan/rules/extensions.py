"""Operators and rules of users: which modules define them, so that each rank of an exported program has them, too.

A plan names, for each of its operators that neither torch nor this package brings, the modules that define the operator
and its rule. program.py and ``autoplan.load`` import these by name, as Python would, or from the working directory.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch._library.custom_ops import OPDEFS  # what torch.library.custom_op made, by name: asked for nowhere else

from autoplan.errors import ExtensionError
from autoplan.ir.graph import Model
from autoplan.rules.operator_names import OWN, known_overload
from autoplan.rules.registry import OURS, WHOLE, registered

TORCHS = ("aten", "prims", OWN)  # namespaces that are there wherever torch and this package are
SESSION = "<session>"  # in place of a module: a notebook, or Python's prompt


@dataclass(frozen=True)
class Extension:
    """One operator, and what has to be imported before it can be run and planned.

    op       "mine.scale.default"
    ruled    whether it has a rule, and is not just accepted as replicated
    modules  that of the operator (where torch knows it) and that of its rule, as they are imported
    """

    op: str
    ruled: bool
    modules: tuple[str, ...]


def extensions_of(model: Model) -> tuple[Extension, ...]:
    """The extensions that a model uses, sorted by operator."""
    nodes = [*model.constants, *(node for block in model.blocks for node in block.nodes)]
    return tuple(e for op in sorted({node.op.removeprefix(WHOLE) for node in nodes}) for e in extension_of(op))


def extension_of(op: str) -> Iterator[Extension]:
    namespace, _, name = op.partition(".")
    rule = registered().get(op)
    foreign = rule is not None and not rule.__module__.startswith(OURS)
    if namespace in TORCHS and not foreign:
        return
    definition = OPDEFS.get(f"{namespace}::{name.split('.')[0]}")
    modules = [] if definition is None else [definition._init_fn.__module__]
    modules += [rule.__module__] if rule is not None and foreign else []
    yield Extension(op, rule is not None, tuple(dict.fromkeys(map(importable, modules))))


def importable(module: str) -> str:
    """The name under which another process imports a module; the script that runs is one under its file's name."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return spec.name
    return SESSION if file is None else Path(file).stem


def here(extension: Extension) -> bool:
    """Whether this process has the operator, and its rule."""
    return known_overload(extension.op) is not None and (not extension.ruled or own_rule(extension))


def own_rule(extension: Extension) -> bool:
    """Whether the rule that is registered is the one that was planned with, by its module."""
    rule = registered().get(extension.op)
    return rule is not None and (not extension.modules or importable(rule.__module__) in extension.modules)


def require(extensions: Iterable[Extension]) -> None:
    """Imports what isn't here yet. ExtensionError where a module can't be imported, or doesn't define what it did."""
    for extension in extensions:
        if here(extension):
            continue
        for module in extension.modules:
            import_by_name(module, extension.op)
        if not here(extension):
            raise ExtensionError(extension.op, missing(extension), remedy(extension))


def missing(extension: Extension) -> str:
    what = "operator" if known_overload(extension.op) is None else "rule of this operator"
    where = f"by importing {' and '.join(extension.modules)}" if extension.modules else "here"
    return f"the plan uses it, and no such {what} is defined {where}"


def remedy(extension: Extension) -> str:
    if extension.modules:
        return "define it there at the module's top level, or import there what defines it"
    return "import the module that defines it before autoplan.load, in train.py for one"


def import_by_name(module: str, op: str) -> None:
    """Imports a module that lies on Python's path or, as for ``python -m``, in the working directory."""
    check_importable([module], op)
    before = list(sys.path)
    try:
        sys.path.append(str(Path.cwd()))
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ExtensionError(
                f"module {module!r}", f"it defines {op}, and imports {error.name!r}, which isn't installed",
                f"install {error.name}",
            ) from error  # fmt: skip
        raise ExtensionError(
            f"module {module!r}", f"it defines {op}, which the plan uses, and isn't found on any of Python's paths",
            f"put the folder that {module.split('.')[0]} lies in on PYTHONPATH, start there, or install it",
        ) from None  # fmt: skip
    finally:
        sys.path[:] = before


def check_importable(modules: Iterable[str], op: str) -> None:
    """ExtensionError for what was typed into a session: no other process can have it."""
    if SESSION in modules:
        raise ExtensionError(
            op, "it, or its rule, is defined in an interactive session, which no other process can import",
            "put both into a module (a file), and import that",
        )  # fmt: skip


def check_exportable(extensions: Iterable[Extension]) -> None:
    """ExtensionError where ranks of an exported program couldn't import what it needs."""
    for extension in extensions:
        check_importable(extension.modules, extension.op)
