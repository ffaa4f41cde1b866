"""Operators of users: planned, exported, imported by every rank; and what is said where that can't be."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.errors import ExtensionError, NoRuleError, RuleError
from autoplan.options import Parallelism
from autoplan.rules.extensions import SESSION, Extension, check_exportable, extension_of, require
from autoplan.rules.registry import Rule, registered
from autoplan.trace.pipeline import trace
from tests.support import custom_operators
from tests.support.custom_operators import rules_as_before
from tests.support.planning import alone, parallelize_alone

ROOT = Path(__file__).resolve().parents[2]
OP = "tried.scale.default"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with rules_as_before():
        yield


def scale_rule(x: object, w: object, k: float = 2.0) -> Rule:
    return Rule("a b, b -> a b", linear=((0,), (1,)), saved=(0, 1))


def imported_anew(module: str) -> None:
    """What a module registers stands here; ranks that are no forks of this process import it themselves."""
    known = sys.modules.get(module)
    importlib.import_module(module) if known is None else importlib.reload(known)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.weight = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(custom_operators.scale(self.up(x), self.weight)).square().mean()


def plan(parallelism: Parallelism | str = "auto", **options: object) -> autoplan.Plan:
    return parallelize_alone(Scaled(), "1x2 cpu", (torch.randn(8, 8),), parallelism=parallelism, **options)


@pytest.mark.parametrize("pins", [Parallelism(dp=2, tp=1), Parallelism(tp=2)], ids=["dp", "tp"])
def test_an_operator_of_ones_own_is_planned_and_equals_one_device(pins: Parallelism) -> None:
    imported_anew("tests.support.scale_rule")
    assert plan(pins).verify().passed


def test_the_arguments_of_an_operator_of_ones_own_stay_as_they_were_written() -> None:
    class Turning(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return custom_operators.turned(super().forward(x), dim=-1, copy=True)

    traced = trace(Turning(8, 8), (torch.randn(4, 8),), training=False)
    (node,) = (node for block in traced.blocks for node in block.nodes if node.op == "tried.turned.default")
    assert node.kwargs == (("copy", True), ("dim", -1))


def test_without_a_rule_the_error_suggests_one() -> None:
    with pytest.raises(NoRuleError) as caught:
        plan()
    text = str(caught.value)
    assert "run by module 'root'" not in text and OP in text
    assert "return autoplan.Rule('a b, b -> a b', linear=((0,), (1,)))" in text
    assert "a guess from its values on small tensors" in text and "autoplan.replicated('tried.scale.default')" in text


def test_it_may_be_accepted_as_replicated() -> None:
    assert plan(Parallelism(tp=2), constraints=[autoplan.replicated(OP)]).verify().passed


def test_a_rule_is_registered_once_and_can_be_taken_out() -> None:
    autoplan.rule(custom_operators.scale)(scale_rule)
    autoplan.rule("tried::scale")(scale_rule)  # the same function again: a module that is reloaded
    with pytest.raises(RuleError, match=r"has a rule already, scale_rule of .*replace=True"):
        autoplan.rule(OP)(lambda *args: Rule("a b, b -> a b"))
    autoplan.rule(OP, replace=True)(lambda *args: Rule("a b, b -> a b"))
    autoplan.unregister(custom_operators.scale)
    assert OP not in registered()
    with pytest.raises(RuleError, match="it has no rule"):
        autoplan.unregister(OP)


def test_a_plan_names_the_modules_that_define_its_operators() -> None:
    autoplan.rule(custom_operators.scale)(scale_rule)
    assert list(extension_of(OP)) == [Extension(OP, True, ("tests.support.custom_operators", __name__))]
    assert list(extension_of("aten.add.Tensor")) == list(extension_of("autoplan.dropout")) == []
    autoplan.rule("aten.relu.default", replace=True)(scale_rule)
    assert list(extension_of("aten.relu.default")) == [Extension("aten.relu.default", True, (__name__,))]


def test_what_can_not_be_imported_is_told() -> None:
    there = Extension("tried.soft.default", False, ("no_such_module",))
    require([there])  # it is here: nothing is imported
    with pytest.raises(ExtensionError, match=r"isn't found on any of Python's paths.*PYTHONPATH"):
        require([replace(there, op="tried.nothing.default")])
    with pytest.raises(ExtensionError, match="no such operator is defined by importing json"):
        require([Extension("tried.nothing.default", False, ("json",))])
    with pytest.raises(ExtensionError, match="no such rule of this operator is defined by importing json"):
        require([Extension("tried.soft.default", True, ("json",))])
    with pytest.raises(ExtensionError, match=r"import the module that defines it before autoplan\.load"):
        require([Extension("tried.nothing.default", False, ())])
    with pytest.raises(ExtensionError, match="interactive session"):
        check_exportable([Extension(OP, True, (SESSION,))])


def test_a_module_that_lacks_what_it_imports_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExtensionError, match=r"it defines .* and imports 'not_installed_anywhere'"):
        require([Extension("tried.nothing.default", False, ("lacking",))])


def test_the_example_is_proved_planned_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module("custom_operator")
    rows = torch.randn(4, 6, 8)
    report = autoplan.check_rule(example.gated_norm, (rows, rows, torch.randn(8), 1e-5), meshes=[(2,), (2, 2)])
    assert report.notes == () and report.largest_difference < 1e-12
    with alone():
        found = example.plan(Parallelism(dp=2, tp=2, pp=1))
    assert found.verify().passed
    assert found.record.extensions == (Extension("example.gated_norm.default", True, ("custom_operator",)),)


@pytest.mark.slow
def test_each_rank_of_the_exported_example_imports_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, *command]
        return subprocess.run(arguments, capture_output=True, text=True, env=environment | more, cwd=tmp_path)

    made = run(str(ROOT / "examples" / "custom_operator.py"), str(folder))
    assert made.returncode == 0, made.stderr
    assert "equal one device" in made.stdout and "equal to one device" in made.stdout
    program = (folder / "program.py").read_text()
    assert "Extension(\"example.gated_norm.default\", ruled=True, modules=('custom_operator',))" in program
    assert "torch.ops.example.gated_norm.default(" in program
    lost = run(str(folder / "train.py"))
    assert lost.returncode == 2 and "put the folder that custom_operator lies in on PYTHONPATH" in lost.stderr
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "4", str(folder / "train.py"), "--steps", "2")
    trained = run(*launch, PYTHONPATH=f"{ROOT}:{ROOT / 'examples'}")
    assert trained.returncode == 0, trained.stderr
    assert "step     2  loss" in trained.stdout
