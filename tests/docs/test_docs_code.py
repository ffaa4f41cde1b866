"""Code of the documentation: Python compiles, what is marked as run runs, and shell lines name what exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autoplan import cli
from tests.docs.pages import PAGES, ROOT, Code, Page
from tests.support.forked import in_fork

TEMPLATES = ROOT / "autoplan" / "emit" / "templates"
OTHERS = {"pip", "cd", "git", "export"}  # commands that the repository doesn't define
EXPORTED = ("train.py", "run.py")

PYTHON = [(page, code) for page in PAGES for code in page.code("python")]
PLANS = ROOT / "docs" / "how_to"  # pages whose code plans and trains
RUN = [
    pytest.param(page, marks=pytest.mark.slow if page.path.parent == PLANS else ())
    for page in PAGES if any(code.runs for code in page.code("python"))
]  # fmt: skip
SHELL = [(page, code) for page in PAGES for code in page.code("sh", "bash")]


def name_of(value: object) -> str | None:
    if isinstance(value, Page):
        return value.name
    return f"line-{value.line}" if isinstance(value, Code) else None


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=name_of)
def test_python_compiles(page: Page, code: Code) -> None:
    compile(code.text, f"{page.name}:{code.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", RUN, ids=name_of)
@in_fork
def test_what_is_marked_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's marked blocks, one after another, in one namespace and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "documentation"}
    for code in page.code("python"):
        if code.runs:
            exec(compile(code.text, f"{page.name}:{code.line}", "exec"), names)


@pytest.mark.parametrize(("page", "code"), SHELL, ids=name_of)
def test_shell_names_what_exists(page: Page, code: Code) -> None:
    for words in commands(code.text):
        check(words)


def commands(text: str) -> Iterator[list[str]]:
    """Each line's words, without comments and without variables set for it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield words


def check(words: Sequence[str]) -> None:
    """AssertionError, or the parser's own error, where a command names what doesn't exist."""
    command, *rest = words
    if command == "autoplan":
        cli.parser().parse_args(rest)
    elif command == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = [word for word in rest if "=" not in word]
        assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), words
    elif command in ("python", "torchrun"):
        check_program(rest)
    else:
        assert command in OTHERS, words


def check_program(words: Sequence[str]) -> None:
    """A module or a script, and options that its source spells."""
    place = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
    if words[place] == "-m":
        found = importlib.util.find_spec(words[place + 1])
        assert found is not None and found.origin, words
        origin = Path(found.origin)
        files = [*origin.parent.rglob("*.py")] if origin.name == "__init__.py" else [origin]
    elif Path(words[place]).name in EXPORTED:
        files = [path for path in TEMPLATES.iterdir() if path.is_file()]
    else:
        files = [ROOT / words[place]]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for word in words[place + 1 :]:
        option = word.partition("=")[0]
        assert not option.startswith("--") or f'"{option}"' in source, f"{option} in {' '.join(words)}"
