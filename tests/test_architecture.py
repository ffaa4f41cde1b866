"""The order of docs/appendix/modules.md, read from the import statements: who may know of whom."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.import_order import COST_ORDER, ORDER
from tests.support.sources import source_of

ROOT = Path(__file__).resolve().parent.parent

READ_FX = "trace"  # the only reader of torch.fx and torch.export
READ_COSTS = ("cluster", "cost")  # the only importers of cost_models
FREE_OF_PRICES = ("cost_models.pipeline.order", "cost_models.pipeline.schedule")  # what the runtime follows of them
MAX_LINES, MOST_MODULES = 400, 15
ONE_IDEA = set(
    "accelerate alternatives attention batch_moves buffers checkpoint compiled convolution ctc experts "
    "gathered_optimizer hidden huggingface indexing interleaved linalg lookups loss matmul norm one_line pooling "
    "recurrence reduction ring scan scatter selective sorting start view vocab_parallel windows".split()
)
"""Names of several modules that mean the same in each of their rooms: an operator's rule and its canonical form, a
price and what runs at it, what is found and how it is told."""


def module_name(path: Path) -> str:
    """autoplan/ir/choice.py -> "search.choice"; a package's __init__.py -> the package; the root's "__init__"."""
    parts = path.relative_to(ROOT / "autoplan").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


SOURCES = {module_name(path): path for path in sorted((ROOT / "autoplan").rglob("*.py"))}
COSTS = {
    ".".join(path.relative_to(ROOT / "cost_models").with_suffix("").parts): path
    for path in sorted((ROOT / "cost_models").rglob("*.py"))
}
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, with "from package import module" as package.module where that is a module."""
    source, found = source_of(path), list[str]()
    assert not source.relative, f"{path}: relative import"
    for module, name in source.imports:
        inner = f"{module}.{name}" if name else module
        path_of = ROOT / inner.replace(".", "/")
        there = not name or path_of.is_dir() or path_of.with_suffix(".py").exists()
        found.append(inner if there else module)
    return tuple(found)


def own_imports(path: Path) -> Iterator[str]:
    """The modules of autoplan that a file imports, without the leading "autoplan."."""
    for name in imported(path):
        if name == "autoplan" or name.startswith("autoplan."):
            yield name.removeprefix("autoplan").removeprefix(".") or "__init__"


def entry(module: str) -> str:
    """The entry of ORDER that a module belongs to: the longest that is a prefix of its name."""
    found = [e for e in ORDER if module == e or module.startswith(f"{e}.")]
    assert found, f"autoplan.{module} has no place in the order of tests/support/import_order.py"
    return max(found, key=len)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_imports_point_up() -> None:
    for module, path in SOURCES.items():
        here = ORDER.index(entry(module))
        below = [name for name in own_imports(path) if ORDER.index(entry(name)) > here]
        assert not below, f"autoplan.{module} imports {below}, which stand below it"


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {module: set(own_imports(path)) & SOURCES.keys() - {module} for module, path in SOURCES.items()}
    while free := [module for module, wants in graph.items() if not wants & graph.keys()]:
        for module in free:
            del graph[module]
    assert not graph, f"import each other: {sorted(graph)}"


def test_only_the_trace_reads_torch_fx() -> None:
    for module, path in SOURCES.items():
        read = [n for n in imported(path) if within(n, "torch.fx") or within(n, "torch.export")]
        assert not read or within(module, READ_FX), f"autoplan.{module} imports {read}"


def test_only_pricing_and_cluster_read_the_cost_models() -> None:
    for module, path in SOURCES.items():
        read = [n for n in imported(path) if within(n, "cost_models")]
        priced = [name for name in read if name not in FREE_OF_PRICES]
        assert not priced or any(within(module, one) for one in READ_COSTS), f"autoplan.{module} imports {priced}"


def test_cost_models_know_neither_autoplan_nor_torch() -> None:
    for module, path in COSTS.items():
        forbidden = ("autoplan",) if within(module, "calibrate") else ("autoplan", "torch")
        read = [n for n in imported(path) if any(within(n, f) for f in forbidden)]
        assert not read, f"cost_models.{module} imports {read}"


def test_cost_models_import_upwards() -> None:
    """Along COST_ORDER, a folder's own modules aside."""
    for module in COSTS.keys() - {"__init__"}:
        here = COST_ORDER.index(module.split(".")[0])
        read = [name.split(".")[1] for name in imported(COSTS[module]) if name.startswith("cost_models.")]
        assert not [name for name in read if COST_ORDER.index(name) > here], f"cost_models.{module} imports {read}"


def test_imports_stand_at_the_top() -> None:
    for path in (*SOURCES.values(), *COSTS.values()):
        inside = source_of(path).inside
        assert not inside, f"{path}: imports inside functions, lines {[*inside]}"


def test_no_file_is_too_long() -> None:
    files = [*SOURCES.values(), *COSTS.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert not {name: n for name, n in lengths.items() if n > MAX_LINES}


def test_every_module_has_its_test() -> None:
    """A folder of tests for each package of autoplan; for the rest one test_<module>.py, or test_<module>_….py."""
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    wanted = {module.split(".")[0] for module in (*SOURCES, *COSTS)}
    untested = [
        name
        for name in sorted(wanted - {"__init__", "__main__"} - folders)
        if not any(test == f"test_{name}" or test.startswith(f"test_{name}_") for test in TESTS)
    ]
    assert not untested, f"no tests for {untested}"


def test_nobody_imports_from_a_file_of_tests() -> None:
    """What several share stands in tests/support/, or is a fixture of a conftest.py."""
    for path in (ROOT / "tests").rglob("*.py"):
        read = [name for name in imported(path) if name.startswith("tests.") and ".test_" in name]
        assert not read, f"{path.relative_to(ROOT)} imports {read}: move what both need to tests/support/"


def test_a_folder_holds_few_modules() -> None:
    for folder in {path.parent for path in (*SOURCES.values(), *COSTS.values())}:
        modules = len([*folder.glob("*.py")])
        assert modules <= MOST_MODULES, f"{folder.relative_to(ROOT)} has {modules} modules: a room is missing"


def test_modules_of_one_name_mean_the_same() -> None:
    """A name that says too little stands for another idea in each room; a new one is given a fuller name."""
    modules = [name for name, path in SOURCES.items() if "." in name and path.name != "__init__.py"]
    count = Counter(name.rsplit(".", 1)[1] for name in modules if name.rsplit(".", 1)[1] not in SOURCES)
    several = {name for name, times in count.items() if times > 1}
    assert several == ONE_IDEA, f"name them apart: {several - ONE_IDEA}; no longer shared: {ONE_IDEA - several}"


@pytest.mark.parametrize(("folder", "order"), [("autoplan", ORDER), ("cost_models", COST_ORDER)])
def test_the_document_tells_the_same_order(folder: str, order: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "appendix" / "modules.md").read_text()
    listed = re.search(rf"```text\n{folder}/\n(.*?)```", text, re.DOTALL)
    assert listed, f"docs/appendix/modules.md has no list of the modules of {folder}"
    names = tuple(line.split()[0] for line in listed[1].splitlines() if line.strip() and line[2] != " ")
    assert names == order


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "autoplan").glob("*/__init__.py")]
    assert not [name for name in packages if f"| `{name}/`" not in text and f", `{name}/`" not in text]
