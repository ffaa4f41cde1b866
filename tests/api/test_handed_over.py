"""What changes in a module once it is planned, and the export would leave out: each is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

import autoplan
from autoplan.errors import AutoplanError
from autoplan.evaluation.handed_over import check_handed_over, handed_over
from tests.support.planning import parallelize_alone


def made() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8))
    model[2].requires_grad_(False)
    return model


def tied(model: nn.Sequential) -> None:
    model[2].weight = model[0].weight


CHANGES: list[tuple[Callable[[nn.Sequential], object], str]] = [
    (lambda m: m[2].requires_grad_(True), r"2\.bias, 2\.weight: it was frozen when the module was planned"),
    (lambda m: m[0].bias.requires_grad_(False), r"0\.bias: it was trained when"),
    (tied, r"2\.weight: "),
    (lambda m: m[3].eval(), "3: its mode"),
    (lambda m: m[0].register_forward_hook(lambda *_: None), "0: its forward hooks are others"),
    (lambda m: m[0].register_full_backward_hook(lambda *_: None), "backward hook isn't traced"),
    (lambda m: m[0].weight.register_hook(lambda g: g), "a hook on a parameter's gradient"),
    (lambda m: weight_norm(m[0]), r"0\.parametrizations\..*it isn't there any more, is new"),
    (lambda m: m.append(nn.Linear(8, 2)), r"4\.bias, 4\.weight: it isn't there any more, is new"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_change_since_planning_is_named(change: Callable[[nn.Sequential], object], message: str) -> None:
    model = made()
    planned = handed_over(model)
    change(model)
    with pytest.raises(AutoplanError, match=message):
        check_handed_over(planned, model)


def test_values_and_the_mode_of_the_whole_may_change() -> None:
    model = made()
    planned = handed_over(model)
    model(torch.randn(4, 8)).sum().backward()
    with torch.no_grad():
        model[0].weight.add_(1)
    check_handed_over(planned, model.eval())
    check_handed_over(planned, model.train())


def test_an_export_asks(tmp_path: Path) -> None:
    model = made()
    batch = (torch.empty(8, 8), torch.empty(8, 8))
    plan = parallelize_alone(model, "1x1 cpu", batch, loss_fn=functional.mse_loss, training=autoplan.Training())
    model[2].requires_grad_(True)
    with pytest.raises(AutoplanError, match="plan the module as it is now"):
        plan.export(tmp_path / "plan")
    assert not (tmp_path / "plan").exists()
    model[2].requires_grad_(False)
    plan.export(tmp_path / "plan")
