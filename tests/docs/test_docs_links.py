"""Every link of the documentation leads somewhere, and every file, target and option that it names exists."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from autoplan import cli
from tests.docs.pages import PAGES, ROOT, Page

SITE = ROOT / "docs"
TOP = ("autoplan", "cost_models", "tests", "examples", "docs")
INSIDE = tuple(path.name for path in (ROOT / "autoplan").iterdir() if path.is_dir() and path.name != "__pycache__")
SOURCES = ("*.py", "*.toml", "*.csv", "train.py*", "run.py*")
LIMITS = {"README.md": 700, "docs/architecture.md": 2500}
TORCHRUN = {"--nproc-per-node", "--nnodes", "--log", "--max-restarts", "--rdzv-endpoint", "--node-rank"}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    for target in page.links():
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        led = (page.path.parent / file).resolve() if file else page.path
        assert led.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in Page(led).anchors(), f"{page.name}: {target}"


@every_page
def test_pages_of_the_site_link_only_to_the_site(page: Page) -> None:
    """mkdocs copies docs/ alone; a file of the repository is named in backticks."""
    if SITE not in page.path.parents:
        return
    outside = [t for t in page.links() if "://" not in t and not t.startswith("#")
               and SITE not in (page.path.parent / t.partition("#")[0]).resolve().parents]  # fmt: skip
    assert not outside


@every_page
def test_files_in_backticks_exist(page: Page) -> None:
    """Paths from the repository's root, and from autoplan/: `runtime/engine.py`."""
    for span in page.spans():
        for path in re.findall(r"[\w./-]+/[\w./-]*", span):
            top = path.split("/")[0]
            if top in TOP:
                assert (ROOT / path).exists(), f"{page.name}: {path}"
            elif top in INSIDE:
                assert (ROOT / "autoplan" / path).exists(), f"{page.name}: {path}"


@every_page
def test_targets_of_make_exist(page: Page) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for span in page.spans():
        if found := re.fullmatch(r"make ([a-z-]+)", span):
            assert re.search(rf"^{found[1]}:", makefile, re.MULTILINE), f"{page.name}: {span}"


@every_page
def test_commands_in_backticks_exist(page: Page) -> None:
    commands = next(action.choices for action in cli.parser()._actions if action.metavar == "command")
    for span in page.spans():
        if found := re.match(r"autoplan ([a-z-]+)", span):
            assert found[1] in commands, f"{page.name}: {span}"


@every_page
def test_options_in_backticks_exist(page: Page) -> None:
    for span in page.spans():
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span):
            assert option in TORCHRUN or option in options(), f"{page.name}: {option}"


@functools.cache
def options() -> frozenset[str]:
    """Every option that a source of the repository spells."""
    files: set[Path] = set()
    for folder in ("autoplan", "cost_models", "tests", "examples"):
        files |= {path for pattern in SOURCES for path in (ROOT / folder).rglob(pattern)}
    files.discard(Path(__file__).resolve())
    return frozenset(
        option for path in files if path.is_file()
        for option in re.findall(r"[\"'](--[a-z][a-z0-9-]+)[\"']", path.read_text(encoding="utf-8", errors="ignore"))
    )  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_what_is_read_first_is_short(name: str, limit: int) -> None:
    assert Page(ROOT / name).words <= limit


def test_every_page_is_on_the_site() -> None:
    named = set(re.findall(r":\s*([\w/.-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {page.path.relative_to(SITE).as_posix() for page in PAGES if SITE in page.path.parents}
