"""Gradients of looked-up rows: their coalescing, and the rules by which an update may leave all other rows out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import autoplan
from autoplan import Parallelism, Training
from autoplan.cost.operators.sparse_rows import whole_because
from autoplan.ir.tables import Box, Placed, Table
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.looked_up import BoxGradient, RowGradients, distinct, keep_rows, rows_of
from autoplan.runtime.ops.embedding.lookups import lookups, placed_lookups
from autoplan.runtime.optim.optimizer import build_optimizer

ALONE = MeshAxis("", 1, 0)


@st.composite
def looked_up(draw: st.DrawFn) -> tuple[list[int], int]:
    count = draw(st.integers(1, 12))
    return draw(st.lists(st.integers(0, count - 1), max_size=16)), count


@given(looked_up())
def test_rows_are_there_once_and_as_many_as_indices(case: tuple[list[int], int]) -> None:
    given_rows, count = case
    rows = torch.tensor(given_rows, dtype=torch.int64)
    found, slots = distinct(rows, count)
    assert len(found) == min(len(given_rows), count), "a size that no value decides"
    assert len(set(found.tolist())) == len(found) and all(0 <= row < count for row in found.tolist())
    assert found[slots].tolist() == given_rows


@given(looked_up(), st.data())
def test_sums_of_duplicates_are_those_of_a_whole_gradient(case: tuple[list[int], int], data: st.DataObject) -> None:
    """Of several microbatches, whose indices may be the same."""
    _, count = case
    kept, whole = RowGradients(), torch.zeros(count * 3 + 2, dtype=torch.float64)
    for _ in range(data.draw(st.integers(1, 3))):
        indices = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9)))
        gradient = torch.randn(len(indices), 3, dtype=torch.float64)
        rows, slots = distinct(indices, count)
        kept.add(2, BoxGradient(count, rows, torch.zeros(len(rows), 3).double().index_add_(0, slots, gradient)))
        whole[2:].view(count, 3).index_add_(0, indices, gradient)
    torch.testing.assert_close(kept.whole(torch.zeros_like(whole)), whole, rtol=0, atol=1e-13)
    squares = torch.stack([values.square().sum() for values in kept.values]).sum()
    torch.testing.assert_close(squares, whole.square().sum(), rtol=1e-12, atol=1e-12)
    assert kept.elements().unique().numel() == kept.elements().numel()


POOLINGS = ("sum", "mean", "max", "none")


@given(
    st.sampled_from(POOLINGS), st.booleans(), st.booleans(), st.integers(1, 30), st.integers(1, 4), st.integers(1, 4),
    st.integers(0, 1000),
)  # fmt: skip
def test_what_is_looked_up_has_the_whole_gradient(
    pooling: str, pads: bool, scaled: bool, rows: int, bags: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    scaled = scaled and pooling == "sum"
    table = Table(rows, 3, length, pooling, 0 if pads else -1, scaled)
    boxes = (Box(0, 0, rows, 0, 3, 1),)
    indices = torch.randint(rows, (bags, length))
    scales = [torch.randn(bags, length, dtype=torch.float64)] if scaled else []
    values = torch.randn(rows * 3 + 5, dtype=torch.float64)
    upstream, found = torch.randn(bags, 3 * table.places, dtype=torch.float64), []
    arguments = Placed((table,), boxes, len(values)).arguments
    for sparse in (False, True):
        flat = nn.Parameter(values.clone())
        if sparse:
            keep_rows(flat)
        lookups(flat, [indices], scales, *arguments, sparse=sparse).backward(upstream)
        kept = rows_of(flat)
        if kept is None:
            assert flat.grad is not None
            found.append(flat.grad)
        else:
            assert flat.grad is None
            (box,) = kept.boxes.values()
            assert len(box.rows) == min(rows, bags * length)
            found.append(kept.whole(flat.detach()))
    torch.testing.assert_close(*found, rtol=0, atol=1e-13)


def test_without_rows_kept_the_gradient_is_autograd_s() -> None:
    flat = nn.Parameter(torch.randn(6))
    arguments = Placed((Table(3, 2),), (Box(0, 0, 3, 0, 2, 0),), 6).arguments
    placed_lookups(flat, [torch.tensor([1])], [], *arguments, sparse=True, axes=(ALONE,)).sum().backward()
    assert flat.grad is not None


UNMOVED = [
    Training(optimizer="rowwise-adagrad"), Training(optimizer="sgd"), Training(optimizer="adagrad"),
    Training(optimizer="adagrad", optimizer_options={"lr_decay": 0.1, "initial_accumulator_value": 0.5}),  # type: ignore[arg-type]
    Training(optimizer="sgd", optimizer_options={"maximize": True}),  # type: ignore[arg-type]
]  # fmt: skip
MOVED = [
    Training(optimizer="sgd", momentum=0.9), Training(optimizer="sgd", weight_decay=0.1),
    Training(optimizer="adagrad", weight_decay=0.1), Training(optimizer="adagrad", eps=0.0),
    *(Training(optimizer=name) for name in ("adam", "adamw", "rmsprop", "adadelta", "asgd", "rprop", "nadam")),
]  # fmt: skip


def reason(training: Training, **others: object) -> str:
    given_or_not = {"alone": True, "parallelism": Parallelism(), **others}
    how = autoplan.Training(**{**vars(training), "compile": False})
    return whole_because(how, given_or_not["parallelism"], given_or_not["alone"], ["t"])  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [*UNMOVED, *MOVED], ids=lambda t: f"{t.optimizer} {t.optimizer_settings()}")
def test_the_optimizers_that_leave_elements_without_a_gradient_as_they_are(training: Training) -> None:
    """By torch's own classes: after a step with gradients, one in which half of the elements have none."""
    weight = nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2))
    optimizer = build_optimizer([weight], training)
    steps = [torch.ones_like(weight), torch.ones_like(weight)]
    steps[0][3] = steps[1][2:] = 0.0
    before: list[Tensor] = []
    for gradient in steps:
        before = [weight.detach().clone(), *(v.clone() for v in wide(optimizer, weight))]
        weight.grad = gradient.clone()
        optimizer.step()
    after = [weight.detach(), *wide(optimizer, weight)]
    stays = all(torch.equal(a[2:], b[2:]) for a, b in zip(before, after, strict=True))
    assert stays == (training in UNMOVED) == (not reason(training))


def wide(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> list[Tensor]:
    """State that has a number for each row or more."""
    values = optimizer.state[weight].values()
    return [value for value in values if isinstance(value, Tensor) and value.ndim and len(value) == len(weight)]


@pytest.mark.parametrize(
    ("others", "cause"),
    [
        (dict(alone=False), "summed over the ranks"),
        (dict(parallelism=Parallelism(offload="optimizer")), "takes them to the host"),
        (dict(parallelism=Parallelism(offload="nvme")), "takes them to the host"),
    ],
)
def test_where_gradients_are_needed_whole(others: dict[str, object], cause: str) -> None:
    assert cause in reason(UNMOVED[0], **others)


def test_masters_and_compiled_segments_have_whole_gradients() -> None:
    mixed = Training(optimizer="sgd", precision="bf16-mixed", compile=False)
    assert "masters" in whole_because(mixed, Parallelism(), True, ["t"])
    assert "Training(compile=False)" in whole_because(Training(optimizer="sgd"), Parallelism(), True, ["t"])


def test_a_group_s_optimizer_is_the_one_that_counts() -> None:
    group = {"match": "tables.*", "optimizer": "rowwise-adagrad"}
    how = Training(groups=[group], compile=False)  # type: ignore[arg-type]
    assert whole_because(how, Parallelism(), True, ["tables.0"]) == ""
    assert "adamw moves rows" in whole_because(how, Parallelism(), True, ["other"])
    decayed = Training(optimizer="sgd", groups=[{"match": "t", "weight_decay": 0.1}], compile=False)  # type: ignore[arg-type]
    assert "weight_decay=0.1" in whole_because(decayed, Parallelism(), True, ["t"])
