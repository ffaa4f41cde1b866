"""docs/glossary.md and docs/appendix/modules.md: every definition is the first sentence of a docstring.

python -m tests.bench.reference_document [--write]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.import_order import COST_ORDER, ORDER
from tests.support.sources import source_of

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY, MODULES = ROOT / "docs" / "glossary.md", ROOT / "docs" / "appendix" / "modules.md"
DEFINED = ("solver", "search")  # the packages whose every name the glossary defines

GLOSSARY_HEAD = """\
# Glossary

Every module and public class of the search, in the field's terms. `make reference` writes this page from the
docstrings.
"""
MODULES_HEAD = """\
# Modules

What each module is for, from its docstring. `make reference` writes this page.

A module imports only modules above it in this list, or modules of its own entry. `tests/test_architecture.py` checks
every import.
"""


@dataclass(frozen=True)
class Term:
    """A name that the code defines.

    kind        "package", "module" or "class"
    name        of a module with its package, "search.driver"; of a class its own
    where       the module that defines it, with its package
    definition  the first sentence of its docstring; "" where it has none
    """

    kind: str
    name: str
    where: str
    definition: str


def dotted(path: Path) -> str:
    """autoplan/search/driver.py -> "search.driver"; a package's __init__.py -> the package; others whole."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "autoplan" and len(parts) > 1 else parts).removesuffix(".__init__")


def terms(folder: Path) -> Iterator[Term]:
    """Every package, module and public class in a folder, by path."""
    for path in sorted(folder.rglob("*.py")):
        source, where = source_of(path), dotted(path)
        yield Term("package" if path.name == "__init__.py" else "module", where, where, source.definition)
        for name, definition in source.classes:
            if not name.startswith("_"):
                yield Term("class", name, where, definition)


def glossary_terms() -> list[Term]:
    """What docs/glossary.md defines."""
    return [term for package in DEFINED for term in terms(ROOT / "autoplan" / package)]


def glossary() -> str:
    """docs/glossary.md: classes by name, then modules by folder."""
    found = glossary_terms()
    classes = sorted((term for term in found if term.kind == "class"), key=lambda term: (term.name.lower(), term.where))
    lines = [f"| `{term.name}` | {cell(term.definition)} | `{term.where}` |" for term in classes]
    parts = [GLOSSARY_HEAD, "## Classes\n", "\n".join(("| class | is | in |", "|---|---|---|", *lines)) + "\n"]
    parts.append("## Modules\n")
    modules = [f"| `{term.name}` | {cell(term.definition)} |" for term in found if term.kind != "class"]
    parts.append("\n".join(("| module | is |", "|---|---|", *modules)) + "\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def modules() -> str:
    """docs/appendix/modules.md: the orders of imports, then each package with its docstring and its modules."""
    parts = [MODULES_HEAD, listed("autoplan", ORDER), listed("cost_models", COST_ORDER)]
    for root in ("autoplan", "cost_models"):
        for path in sorted((ROOT / root).rglob("__init__.py")):
            parts.append(package_section(path))
    return "\n".join(parts)


def listed(folder: str, order: Sequence[str]) -> str:
    """An order of imports with a definition of each entry."""
    width = max(map(len, order)) + 2
    lines = [f"  {entry:<{width}}{entry_definition(folder, entry)}".rstrip() for entry in order]
    return "\n".join(("```text", f"{folder}/", *lines, "```")) + "\n"


def entry_definition(folder: str, entry: str) -> str:
    path = ROOT / folder / entry.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return source_of(file).definition


def package_section(path: Path) -> str:
    """A package: its docstring, and a table of its modules."""
    name = ".".join(path.parent.relative_to(ROOT).parts)
    told = source_of(path).docstring.replace("``", "`")
    parts = [f"## {name}\n", told + "\n"]
    modules = [file for file in sorted(path.parent.glob("*.py")) if file.name != "__init__.py"]
    if modules:
        lines = [f"| `{file.stem}` | {cell(source_of(file).definition)} |" for file in modules]
        parts.append("\n".join(("| module | is |", "|---|---|", *lines)) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write both pages")
    if not parser.parse_args(arguments).write:
        print(glossary(), modules(), sep="\n")
        return 0
    GLOSSARY.write_text(glossary(), encoding="utf-8")
    MODULES.write_text(modules(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
