"""What the README shows runs: its Python as it stands, its commands on a small cluster, its report as quoted. The
commands of the pages that it leads to run as well."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from autoplan import cli
from autoplan.report.screen import screen_text
from tests.bench.prices.document import rewritten
from tests.bench.readme_report import command_of, parts, planned
from tests.docs.pages import PAGES, Page
from tests.support.shared_plans import SharedPlans

ROOT = Path(__file__).resolve().parent.parent
README = Page(ROOT / "README.md")
READ = ("what-if", "compare", "verify", "report", "seal")  # commands that read an exported folder

COMMANDS = list(
    dict.fromkeys(
        tuple(shlex.split(line, comments=True)[1:])
        for page in PAGES
        for code in page.code("sh")
        for line in code.text.splitlines()
        if line.startswith("autoplan ")
    )
)
EXPORTS = next(command for command in COMMANDS if command[0] == "plan" and "out/llama" in command)
ASKS = [command for command in COMMANDS if command[0] in READ]
WALKED = next(command for command in COMMANDS if "out/walk" in command)  # test_architecture_walk.py runs it


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for code in README.code("python"):
        exec(compile(code.text, f"README.md:{code.line}", "exec"), names)
    assert (tmp_path / "out" / "mlp" / "program.py").is_file()
    assert callable(names["train"])


def test_the_report_is_the_one_that_is_printed(shared_plans: SharedPlans) -> None:
    command = command_of(README.text)
    report = screen_text(shared_plans.record(command, lambda: planned(command)))
    assert rewritten(README.text, parts(report)) == README.text, "run make reference"


def asked(command: tuple[str, ...]) -> object:
    """What plans anew takes long, and test_cli.py does the same in small."""
    return command if command[0] in ("verify", "report") else pytest.param(command, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported plan, for the commands that read it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(EXPORTS) == 0
    return folder


@pytest.mark.parametrize("command", [*map(asked, ASKS)], ids=" ".join)
@pytest.mark.usefixtures("verified_in_pool")
def test_an_exported_plan_is_read(
    command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(command) == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in (EXPORTS, WALKED, *ASKS)], ids=" ".join)
def test_a_command_is_one(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = cli.parser().parse_args(command)
    if "cpu" in getattr(options, "cluster_spec", ""):
        monkeypatch.chdir(tmp_path)
        assert cli.main(command) == 0
        assert options.export is None or (tmp_path / options.export / "train.py").is_file()


def test_continuous_integration_runs_the_first_commands_in_their_order() -> None:
    first = [line.split("#")[0].strip() for line in next(README.code("sh")).text.splitlines()]
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert first == script == ["make demo", "make test"]
