"""Modes as they were handed over: what is folded, what is switched, what a report says; and what verification runs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.options import Training
from autoplan.trace.checks.modes import mode_notes, outermost_evaluated, set_modes, wholly_evaluated
from autoplan.trace.pipeline import trace
from autoplan.trace.repeats.finding import find_runs
from autoplan.verify.quiet import Quiet
from autoplan.verify.reference import reference_of, train_eagerly, wide_loss

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
SGD = Training(optimizer="sgd", precision="fp64")


def layers(count: int = 5) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)) for _ in range(count)))


def test_only_a_model_that_is_wholly_in_eval_mode_is_switched() -> None:
    model = layers(2).eval()
    assert wholly_evaluated(model) and "wholly in eval mode" in mode_notes(model)[0]
    model[0][1].train()
    assert not wholly_evaluated(model)
    set_modes(model, training=True, switched=wholly_evaluated(model))
    assert [m.training for m in model[0]] == [False, True, False]
    set_modes(model, training=False, switched=False)
    assert wholly_evaluated(model)


def test_a_note_names_the_outermost_and_counts_the_others() -> None:
    model = layers()
    assert mode_notes(model) == ()
    for layer in model[1:]:
        layer.eval()
    assert outermost_evaluated(model) == ["1", "2", "3", "4"]
    assert mode_notes(model)[0].startswith("in eval mode, as handed over: 1, 2, 3 and 1 more;")


def test_layers_in_other_modes_are_not_folded_with_their_neighbours() -> None:
    model = layers(6)
    assert [(run.start, run.count) for run in find_runs(model)] == [(0, 6)]
    model[5][1].eval()
    assert [(run.start, run.count) for run in find_runs(model)] == [(0, 5)]
    traced = trace(model, (X, X), loss_fn=F.mse_loss, training=True)
    norms = [n for s in traced.segments for n in traced.blocks[s.block].nodes if n.op == "autoplan.batch_norm"]
    assert [node.args[6] for node in norms] == [True] * 5 + [False]
    quiet = trace(model, (X,), training=False)
    norms = [n for s in quiet.segments for n in quiet.blocks[s.block].nodes if n.op == "autoplan.batch_norm"]
    assert len(norms) == 6 and not any(node.args[6] for node in norms), "inference evaluates all of it"
    assert not quiet.notes


def test_the_reference_is_the_module_itself() -> None:
    model = layers(2)
    model[0].eval()
    model[0][0].weight.requires_grad_(False)
    reference = reference_of(model, seed=5)
    assert all(torch.equal(r, v.double()) for r, v in zip(reference.state_dict().values(), model.state_dict().values()))  # noqa: B905
    assert not reference[0][0].weight.requires_grad and not reference[0][1].training and reference[1][1].training
    before = copy.deepcopy(reference[0][1].state_dict())
    train_eagerly(reference, lambda out, _: out.square().mean(), {"input": X.double(), "target": X.double()}, SGD, 1)
    assert all(torch.equal(v, before[k]) for k, v in reference[0][1].state_dict().items() if "running" in k)
    assert not torch.equal(reference[1][1].running_mean, model[1][1].running_mean.double())


def test_on_the_meta_device_the_reference_is_drawn() -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    torch.manual_seed(3)
    assert torch.equal(reference_of(model, seed=3).weight, nn.Linear(8, 8).weight.double())


def test_a_loss_module_is_widened_and_left_alone() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    assert wide_loss(loss).weight.dtype == torch.float64 and loss.weight.dtype == torch.float32
    assert wide_loss(F.mse_loss) is F.mse_loss and wide_loss(None) is None


ATTENTION, RNN = nn.MultiheadAttention(8, 2, dropout=0.9), nn.LSTM(8, 8, 2, dropout=0.9)
QUERY = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.9),
        nn.AlphaDropout(0.9),
        nn.Dropout1d(0.5),
        lambda x: F.dropout(x, 0.9, True),
        lambda x: F.dropout(x, p=0.9),
        lambda x: torch.dropout(x, 0.9, True),
        lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.9),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.9),
        lambda x: ATTENTION(x, x, x)[0],
        lambda x: RNN(x)[0],
        nn.TransformerEncoderLayer(8, 2, 16, 0.9),
    ],
)
def test_nothing_is_dropped_where_it_is_quiet(drop: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(4)
    assert not torch.equal(drop(QUERY), drop(QUERY)), "it drops by itself"
    with Quiet():
        assert torch.equal(drop(QUERY), drop(QUERY))


def test_where_it_is_quiet_the_modes_stay() -> None:
    class Branching(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2 if self.training else 1)

    with Quiet():
        assert torch.equal(Branching(0.9)(X), 2 * X)
