"""``program.evaluate``: the loss of ``model.eval()`` on one device, of any number of rows; nothing is changed by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from autoplan import Training
from autoplan.compile import traced_model
from autoplan.errors import ParallelismError
from autoplan.evaluation.evaluation_choice import dividing, forward_mesh
from autoplan.evaluation.evaluation_graph import evaluated
from autoplan.evaluation.form import forms_of
from autoplan.evaluation.handed_over import handed_over
from autoplan.evaluation.proof import Given, prove
from autoplan.evaluation.same import difference
from autoplan.export.folder import opened
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.ir.layout import Layout, R, S
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import Evaluable
from autoplan.lower.resized import BatchSizes
from autoplan.runtime.inference.agreed_batch import Shown, agreed
from autoplan.trace.pipeline import trace
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.forwards import (
    BOUND,
    Branching,
    Planned,
    evaluate,
    features,
    planned,
    relative,
    sum_over_eight,
    train,
    train_then_evaluate,
)

SIZES = (8, 7, 3, 1)
LAYERED = ("gpt2", "bert", "llama", "t5", "mixtral")
DROPS = {"gpt2": {"dropout": 0.1}, "bert": {"dropout": 0.1}}
SLOW = pytest.mark.slow
# Always run: ZeRO-3, one tensor axis, statistics of batches; a training that goes on with the most stages in flight;
# replicas that are apart.
CASES = [
    pytest.param(
        "gpt2",
        {"dp": 2, "pp": 2, "tp": 1, "virtual_stages": 2, "pipeline_schedule": "interleaved", "micro_batch": 1},
        marks=SLOW,
    ),
    pytest.param(*("gpt2", {"dp": 4, "tp": 1, "pp": 1, "zero": 3}), marks=SLOW),
    pytest.param(
        *("gpt2", {"dp": 1, "tp": 2, "pp": 2, "pipeline_schedule": "zero-bubble", "micro_batch": 2}), marks=SLOW
    ),
    pytest.param(*("bert", {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2, "zero": 0}), marks=SLOW),
    pytest.param(*("llama", {"dp": 1, "tp": 4, "pp": 1, "tensor": (4,)}), marks=SLOW),
    pytest.param(*("resnet", {"dp": 2, "tp": 2, "pp": 1}), marks=SLOW),
    pytest.param(*("resnet", {"dp": 1, "tp": 1, "pp": 4}), marks=SLOW),
    pytest.param(*("convnet", {"dp": 4, "tp": 1, "pp": 1, "zero": 1}), marks=SLOW),
    pytest.param(*("t5", {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 2, "pipeline_schedule": "gpipe"}), marks=SLOW),
    pytest.param(*("mixtral", {"dp": 2, "tp": 2, "pp": 1}), marks=SLOW),
    ("mixtral", {"dp": 2, "tp": 1, "pp": 2, "ep": 2, "micro_batch": 1}),  # of 3 rows ep divides none
    pytest.param(*("unet", {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 4}), marks=SLOW),
]
TRAINED = [
    pytest.param({"dp": 4, "tp": 1, "pp": 1, "zero": 1}, marks=SLOW),
    pytest.param({"dp": 4, "tp": 1, "pp": 1, "zero": 2, "micro_batch": 1}, marks=SLOW),
    pytest.param({"dp": 4, "tp": 1, "pp": 1, "zero": 3}, marks=SLOW),
    pytest.param({"dp": 2, "pp": 2, "tp": 1, "zero": 3, "micro_batch": 2, "pipeline_schedule": "gpipe"}, marks=SLOW),
    {"dp": 2, "pp": 2, "tp": 1, "pipeline_schedule": "interleaved", "virtual_stages": 2, "micro_batch": 1},
    pytest.param({"dp": 1, "pp": 2, "tp": 2, "pipeline_schedule": "zero-bubble", "micro_batch": 2}, marks=SLOW),
    pytest.param({"dp": 4, "tp": 1, "pp": 1, "local_steps": 3}, marks=SLOW),
]


def of_zoo(folder: Path, name: str, **pinned: object) -> Planned:
    """Transformers of two layers: enough for four stages, beside the embedding and the head."""
    layers = {"layers": 2} if name in LAYERED else {}
    model, batch, loss_fn = zoo.small(name, **layers, **DROPS.get(name, {}))
    return planned(folder / "out", model, batch, loss_fn, **pinned)


@pytest.mark.parametrize(("name", "pinned"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)))
def test_it_is_one_devices_loss_in_evaluation(
    pool: RankPool, tmp_path: Path, name: str, pinned: dict[str, object]
) -> None:
    """Also of the first and of the last rows of the batch."""
    plan = of_zoo(tmp_path, name, **pinned)
    batches = [*map(plan.rows, SIZES), plan.rows(5, first=3)]
    expected = [plan.loss(batch) for batch in batches]
    for found in pool.run(evaluate, str(plan.folder), plan.weights, batches):
        assert max(map(relative, found, expected)) < BOUND


@pytest.mark.parametrize("pinned", TRAINED, ids=lambda p: "-".join(f"{k}={v}" for k, v in p.items()))
def test_training_goes_on_as_if_nothing_had_been_evaluated(
    pool: RankPool, tmp_path: Path, pinned: dict[str, object]
) -> None:
    plan = of_zoo(tmp_path, "gpt2", **pinned)
    alone = pool.run(train, str(plan.folder), plan.weights, plan.batch, None)
    beside = pool.run(train, str(plan.folder), plan.weights, plan.batch, plan.rows(3))
    assert [losses for losses, _ in beside] == [losses for losses, _ in alone]
    assert all(kept for _, kept in beside)


@pytest.mark.slow
def test_running_statistics_stay_while_others_are_evaluated(pool: RankPool, tmp_path: Path) -> None:
    plan = of_zoo(tmp_path, "resnet", dp=2, tp=2, pp=1)
    alone = pool.run(train, str(plan.folder), plan.weights, plan.batch, None)
    beside = pool.run(train, str(plan.folder), plan.weights, plan.batch, plan.rows(3))
    assert beside == [(losses, True) for losses, _ in alone]


@pytest.mark.parametrize(
    "pinned",
    [
        pytest.param({"dp": 4, "tp": 1, "pp": 1, "zero": 3}, marks=SLOW),
        {"dp": 4, "tp": 1, "pp": 1, "local_steps": 4},
        pytest.param({"dp": 1, "tp": 2, "pp": 2, "pipeline_schedule": "pipedream-2bw", "micro_batch": 2}, marks=SLOW),
    ],
    ids=["zero3", "local", "pipedream-2bw"],
)
def test_after_steps_it_is_the_loss_of_the_state_that_is_saved(
    pool: RankPool, tmp_path: Path, pinned: dict[str, object]
) -> None:
    """Of local SGD of the replicas' mean, without a flush of the weights once the pipeline is drained."""
    plan = of_zoo(tmp_path, "gpt2", **pinned)
    found = pool.run(train_then_evaluate, str(plan.folder), plan.weights, plan.batch, 2)
    plan.module.load_state_dict(found[0][1], strict=False)
    after = plan.loss(plan.batch)
    assert all(relative(losses[1], after) < BOUND for losses, _ in found)
    assert abs(found[0][0][0] - after) > 1e-6


def test_a_model_that_branches_on_training_is_refused_by_name(pool: RankPool, tmp_path: Path) -> None:
    plan = planned(tmp_path / "out", Branching(), features(), nn.functional.mse_loss, dp=4, tp=1, pp=1)
    known = opened(plan.folder).record.evaluable
    assert "its graph in evaluation with 8 rows differs: aten.linear.default of head" in known.model
    with pytest.raises(ParallelismError, match="let forward compute the same in training and in evaluation"):
        forms_of(opened(plan.folder).record)(BatchSizes(8))


def test_a_number_that_only_looks_like_the_rows_stays(tmp_path: Path) -> None:
    plan = planned(tmp_path / "out", zoo.mlp(), features(), sum_over_eight, dp=1, tp=1, pp=1, cluster="1x1 cpu")
    assert opened(plan.folder).record.evaluable == Evaluable(tokens="the model reads no rows of tokens")
    assert forms_of(opened(plan.folder).record)(BatchSizes(3)).lowered.batch[0].type.shape == (3, 16)


def given(module: nn.Module, loss_fn: object, rows: int = 8) -> Given:
    training, inputs = Training(precision="fp64"), tuple(x[:rows] for x in features())
    traced = traced_model(module, inputs, loss_fn, training)  # type: ignore[arg-type]
    return Given(
        module, inputs, traced,
        lambda other: traced_model(module, other, loss_fn, training, evaluated=True),  # type: ignore[arg-type]
        lambda other: traced_model(module, other, loss_fn, training),  # type: ignore[arg-type]
        handed_over(module),
    )  # fmt: skip


def over_rows(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum() / output.shape[0]


def at_one(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    scale = 2.0 if output.shape[0] < 2 else 1.0
    return (output - target).square().mean() * scale


@pytest.mark.parametrize("loss_fn", [over_rows, at_one])
def test_a_graph_that_depends_on_the_rows_is_known_for_the_planned_ones_alone(loss_fn: object) -> None:
    found = prove(given(zoo.mlp(), loss_fn))
    assert found.model == "" and "differs" in found.rows
    assert "differs" in found.training


def test_one_and_two_rows_are_proved_too() -> None:
    assert prove(given(zoo.mlp(), nn.functional.mse_loss, rows=2)).rows == ""
    assert "no more" in prove(given(zoo.mlp(), nn.functional.mse_loss, rows=1)).rows


def traced(name: str, *, evaluated: bool = False, **sizes: float) -> Model:
    model, batch, loss_fn = zoo.small(name, **sizes)
    return trace(model, batch, loss_fn=loss_fn, training=True, evaluated=evaluated)


@pytest.mark.parametrize(("name", "sizes"), [("gpt2", {"dropout": 0.1}), ("resnet", {})])
def test_a_training_graph_in_evaluation_is_the_graph_traced_there(name: str, sizes: dict[str, float]) -> None:
    here = traced(name, **sizes)
    assert difference(here, traced(name, evaluated=True, **sizes)) == ""
    ops = {node.op for block in evaluated(here).blocks for node in block.nodes}
    assert "autoplan.dropout" not in ops and evaluated(evaluated(here)) == evaluated(here)


def test_other_numbers_and_other_parameters_make_other_graphs() -> None:
    one, other = nn.Sequential(nn.Linear(16, 12), nn.ELU()), nn.Sequential(nn.Linear(16, 12), nn.ELU(alpha=0.5))
    graphs = [trace(m, features(), loss_fn=nn.functional.mse_loss, training=True) for m in (one, other)]
    assert "elu" in difference(*graphs)


CHOSEN = Mesh.of(pp=1, dp=4, tp=2, mb=2)


@pytest.mark.parametrize(
    ("rows", "expected"), [(16, (4, 2)), (8, (4, 1)), (12, (4, 3)), (7, (1, 7)), (6, (1, 3)), (1, (1, 1))]
)
def test_rows_are_split_where_they_divide_into_microbatches_no_larger_than_planned(
    rows: int, expected: tuple[int, int]
) -> None:
    batch = (Layout.of(2, {"dp": S(0), "mb": S(0)}, CHOSEN),)
    chosen = Chosen(CHOSEN, None, 2, batch, (), (), (), None)  # type: ignore[arg-type]
    mesh = forward_mesh(chosen, 16, rows)
    assert (mesh.size("dp"), mesh.size("mb")) == expected


def test_a_layout_is_whole_along_axes_that_no_longer_divide() -> None:
    mesh = Mesh.of(dp=1, tp=2, tp2=2, mb=1)
    layout = Layout.of(2, {"tp": S(0), "tp2": S(0), "dp": S(0)}, mesh)
    kind = traced("mlp").batch[0].type
    two, one = (dividing(layout, type(kind)((rows, 4), "float32"), mesh) for rows in (2, 1))
    assert two.dims == (("dp", "tp"), ()) and two.state("tp2") == R
    assert one.dims == (("dp",), ()) and one.state("tp") == one.state("tp2") == R


def test_the_rows_of_ranks_are_one_batch_or_parts_of_it() -> None:
    whole = [Shown(0, 5, (1,), ()), Shown(0, 5, (1,), ()), Shown(1, 5, (1,), ())]
    own = [Shown(0, 5, (1,), ()), Shown(0, 5, (1,), ()), Shown(1, 2, (7,), ())]
    assert (agreed(whole), agreed(own)) == (5, 7)
