"""The table of architectures: what is in it, what it says, and one of its cells."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from autoplan.verify.compare import Worst
from autoplan.verify.local_ranks import RankPool
from tests.bench.architectures import __main__ as command
from tests.bench.architectures.catalog import ARCHITECTURES
from tests.bench.architectures.cells import PARALLELISMS, Outcome, check
from tests.bench.architectures.document import document

NAMED = (
    "gpt2 gpt_neox llama mistral mixtral qwen2 qwen3 qwen2_moe gemma2 phi3 falcon opt bloom olmoe gpt_oss mamba bert "
    "roberta deberta modernbert t5 bart vit dinov2 resnet"
).split()
SOURCES = Path(__file__).resolve().parents[2] / "autoplan"
EXACT = (Worst(1e-15, "loss"), Worst(1e-14, "a.weight"))


def test_all_that_have_to_be_are_listed() -> None:
    assert {name for name, one in ARCHITECTURES.items() if one.listed} == set(NAMED)
    assert {"auto", "ddp", "tp=4", "pp=2 tp=2"} <= set(PARALLELISMS)


def test_no_architecture_is_named_by_the_planner() -> None:
    """What is planned follows from operators alone; only ``--model hf:`` knows names of models."""
    classes = {one.model for one in ARCHITECTURES.values()} | {one.config for one in ARCHITECTURES.values()}
    for file in SOURCES.rglob("*.py"):
        named = {name for name in classes if name in file.read_text()}
        assert not named, f"{file} names {named}"


def test_nothing_is_dropped_and_every_parameter_is_noisy() -> None:
    made = ARCHITECTURES["bert"].module()
    assert not any(module.p for module in made.modules() if isinstance(module, torch.nn.Dropout))
    assert all(float(p.detach().std()) > 0 for p in made.parameters() if p.numel() > 1)
    assert all(p.is_meta for p in ARCHITECTURES["bert"].module("meta").parameters())


def test_an_architecture_does_what_one_device_does(pool: RankPool) -> None:
    (outcome,) = check(pool, ARCHITECTURES["phi3"], {"ddp": "ddp"}, float32=False)
    assert outcome.faults == (), outcome
    assert outcome.exact is not None and outcome.plan.startswith("dp=4")


def test_a_fault_says_what_and_by_how_much() -> None:
    assert Outcome("gpt2", "ddp", exact=EXACT).faults == ()
    worse = (Worst(2e-10, "loss"), Worst(math.inf, "a.weight"))
    assert Outcome("gpt2", "ddp", exact=worse, single=worse).faults == (
        "float64 loss: error 2.0e-10 of loss, the bound is 1e-10",
        "float64 gradient: error inf of a.weight, the bound is 1e-10",
        "float32 gradient: error inf of a.weight, the bound is 1e-05",
    )
    assert Outcome("gpt2", "ddp", problem="NoRuleError: …").faults == ("NoRuleError: …",)
    with pytest.raises(AssertionError):
        Outcome("gpt2", "ddp").faults  # noqa: B018


@pytest.mark.parametrize(("problem", "status"), [("", 0), ("TraceError: no", 1)])
def test_the_command_keeps_tells_and_ends_with_a_status(
    problem: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = Outcome("llama", "ddp", "dp=4", None if problem else EXACT, problem=problem)
    monkeypatch.setattr(command, "run", lambda names, under, float32: iter([[found]]))
    command.keep(tmp_path / "kept", [Outcome("gpt2", "tp=4", "tp=4", EXACT, EXACT)])
    arguments = ["--keep", str(tmp_path / "kept"), "--write", str(tmp_path / "models.md")]
    assert command.main(arguments) == status
    said, written = capsys.readouterr().out, (tmp_path / "models.md").read_text()
    verdict = "**no**" if problem else "equal, fp64"
    assert f"| llama | decoder | {verdict} |  |" in said and "| gpt2 | decoder |  | equal |" in said
    assert ("llama under ddp (dp=4): TraceError: no" in written) == bool(problem)
    assert f"{1 + (not problem)} of 2 cells" in said


def test_the_document_has_listed_ones_first_and_every_figure() -> None:
    text = document([Outcome("gpt2", "ddp", "dp=4", EXACT), Outcome("albert", "ddp", "dp=4", EXACT, EXACT)])
    assert text.index("| gpt2 |") < text.index("## Further ones") < text.index("| albert |")
    assert "| albert | ddp | dp=4 | 1e-15 | 1e-14 | 1e-15 | 1e-14 |" in text
