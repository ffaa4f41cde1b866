"""Names are defined where they stand: every package, module and class that the reference lists has a short sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.reference_document import GLOSSARY, MODULES, Term, glossary, glossary_terms, modules
from tests.docs.pages import ROOT
from tests.support.sources import source_of

MOST_WORDS = 20
TOP = ("autoplan", "cost_models")
PACKAGES = [
    path.parent for top in TOP for path in sorted((ROOT / top).rglob("__init__.py")) if path.parent.name != "autoplan"
]


def name_of(value: object) -> str | None:
    if isinstance(value, Term):
        return f"{value.where}.{value.name}" if value.kind == "class" else value.name
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else None


@pytest.mark.parametrize("term", glossary_terms(), ids=name_of)
def test_every_name_of_the_search_has_a_short_definition(term: Term) -> None:
    assert term.definition, f"{name_of(term)} has no docstring"
    assert len(term.definition.split()) <= MOST_WORDS, f"{name_of(term)}: {term.definition}"


def test_the_glossary_is_what_the_command_writes() -> None:
    assert GLOSSARY.read_text(encoding="utf-8") == glossary(), "run make reference"


def test_the_list_of_modules_is_what_the_command_writes() -> None:
    assert MODULES.read_text(encoding="utf-8") == modules(), "run make reference"


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_names_its_modules_in_their_order(package: Path) -> None:
    """A module imports none that is named after it."""
    names = named_in_order(package)
    assert sorted(names) == sorted(children(package)), f"{package.name}: its docstring has another list of modules"
    for place, name in enumerate(names):
        later = set(names[place + 1 :]) & set(imports(package, name))
        assert not later, f"{package.name}: {name} imports {sorted(later)}, which its docstring names later"


def children(package: Path) -> Iterator[str]:
    for path in package.iterdir():
        if path.suffix == ".py" and path.name not in ("__init__.py", "__main__.py"):
            yield path.stem
        elif (path / "__init__.py").exists():
            yield path.name


def named_in_order(package: Path) -> list[str]:
    """The modules of a docstring: those in backticks behind "Order:", or the first column of its table."""
    told = source_of(package / "__init__.py").docstring
    order = next((part for part in told.split("\n\n") if part.startswith("Order:")), "")
    if order:
        return re.findall(r"`([a-z_0-9]+)`", re.sub(r"\([^)]*\)", "", order))
    rows = re.findall(r"^ *([a-z_0-9]+(?:, [a-z_0-9]+)*) {2,}\S", told, re.MULTILINE)
    return [name for row in rows for name in row.split(", ")]


def imports(package: Path, child: str) -> Iterator[str]:
    """The children of a package that one of them imports."""
    prefix = ".".join(package.relative_to(ROOT).parts)
    path = package / child
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for module, name in source_of(file).imports:
            full = f"{module}.{name}" if name else module
            if full.startswith(f"{prefix}."):
                yield full.removeprefix(f"{prefix}.").split(".")[0]
