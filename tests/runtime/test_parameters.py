"""What an exported module gets for the names it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.layout import Layout, S
from autoplan.ir.mesh import Mesh
from autoplan.options import Training
from autoplan.runtime.ops.column_linear import side_by_side
from autoplan.runtime.parallel.own_box import Part, cut_dim, part_of, share_of
from autoplan.runtime.parallel.parameters import Made, Parameters
from tests.fixtures import tiny_program as tiny

CPU = torch.device("cpu")


def made(**plan) -> tuple[Made, Parameters]:
    store = Made(tiny.spec(**plan), torch.device("meta"), CPU)
    return store, Parameters(store)


def test_a_segment_s_own_names_lead_to_the_program_s() -> None:
    store, parameters = made(tp=2)
    layer = parameters.segment(2)
    assert layer("gate").shape == (tiny.HIDDEN // 2, tiny.WIDTH)
    assert layer("gate") is parameters("layers.1.gate_up.weight[0:6]")
    assert layer("down.weight").shape == (tiny.WIDTH, tiny.HIDDEN // 2)
    assert set(store.parameters) == {"layers.1.gate_up.weight[0:6]", "layers.1.down.weight"}
    with pytest.raises(KeyError):
        layer("layers.1.scale")


def test_a_tied_parameter_is_one_object() -> None:
    _, parameters = made()
    assert parameters.segment(0)("weight") is parameters.segment(3)("weight")


def test_buffers_are_one_object_on_the_device_while_parameters_may_wait() -> None:
    _, parameters = made()
    assert parameters.segment(0).buffer("shift") is parameters.buffer("shift")
    assert parameters.buffer("shift").device == CPU
    assert parameters("embed.weight").is_meta


@pytest.mark.parametrize(
    ("precision", "held", "updated"),
    [
        ("fp64", "float64", torch.float64),
        ("fp32", "float32", torch.float32),
        ("bf16-mixed", "bfloat16", torch.float32),
        ("fp16-mixed", "float16", torch.float32),
        ("bf16", "bfloat16", torch.bfloat16),
    ],
)
def test_precision_says_in_which_dtypes_parameters_are_held_and_updated(
    precision: str, held: str, updated: torch.dtype
) -> None:
    spec = tiny.in_dtype(tiny.spec(training=Training(precision=precision)), held)
    weight = Made(spec, CPU, CPU).parameter("embed.weight")
    several = Made(spec, CPU, CPU).uses["embed.weight"] > 1
    gradient = updated if several or updated == weight.dtype else None  # None: a gradient is taken as it comes
    assert (weight.dtype, weight.grad_dtype) == (getattr(torch, held), gradient)
    assert spec.storage_dtype(spec.lowered.parameters[0].type) == updated


def test_parameters_lie_side_by_side_where_they_are_asked_to_before_they_are_made() -> None:
    store = Made(tiny.spec(tp=2), CPU, CPU)
    layer = Parameters(store).segment(1)
    layer.side_by_side("gate", "up")
    gate, up = layer("gate"), layer("up")
    assert side_by_side([gate, up]) is not None and gate.is_leaf and gate.requires_grad
    assert gate.shape == (tiny.HIDDEN // 2, tiny.WIDTH) and up is store.parameter("layers.0.gate_up.weight[6:12]")
    layer.side_by_side("gate", "up")  # as a tied one's other segment asks
    assert layer("gate") is gate


def test_what_zero_gathers_is_not_laid_side_by_side() -> None:
    """It has memory of its own, which comes and goes."""
    store = Made(tiny.spec(dp=2, zero=1), torch.device("meta"), CPU)
    store.side_by_side(["layers.0.gate_up.weight[0:6]", "layers.0.gate_up.weight[6:12]"])
    assert not store.parameters


@pytest.mark.parametrize("zero", [1, 3])
def test_what_zero_shards_is_its_own_master(zero: int) -> None:
    spec = tiny.in_dtype(tiny.spec(dp=2, zero=zero, training=Training(precision="bf16-mixed")), "bfloat16")
    assert Made(spec, CPU, CPU).parameter("embed.weight").dtype == torch.float32


def test_a_forward_alone_keeps_what_it_computes_with() -> None:
    spec = tiny.in_dtype(tiny.spec(training=Training(precision="bf16-mixed")), "bfloat16")
    spec = replace(spec, forward_only=True)
    assert Made(spec, CPU, CPU).parameter("embed.weight").dtype == torch.bfloat16
    assert spec.storage_dtype(spec.lowered.parameters[0].type) == torch.bfloat16


def boxes(size: int, ways: int) -> list[Part]:
    return [share_of(Part((3, 0), (size, 2)), ways, index) for index in range(ways)]


@given(size=st.integers(0, 40), ways=st.integers(1, 9))
def test_zero_splits_rows_as_torch_chunk_does(size: int, ways: int) -> None:
    rows = torch.arange(3, 3 + size)
    for part, chunk in zip(boxes(size, ways), [*rows.chunk(ways), *[rows[:0]] * ways][:ways], strict=True):
        assert part.shape == (len(chunk), 2)
        assert list(range(3 + size))[part.slices[0]] == chunk.tolist()


@pytest.mark.parametrize(
    ("shape", "ways", "dim"),
    [
        ((1, 6, 4), 2, 1), ((2, 6, 4), 2, 0), ((2, 6, 4), 4, 0), ((2, 6, 8, 4), 4, 2), ((9, 8, 4), 8, 1),
        ((15, 8, 4), 8, 0), ((1, 6), 2, 0), ((1,), 2, 0), ((), 2, 0),
    ],
)  # fmt: skip
def test_zero_cuts_another_dim_where_there_are_too_few_rows(shape: tuple[int, ...], ways: int, dim: int) -> None:
    assert cut_dim(shape, ways) == dim
    if dim:
        shares = [share_of(Part((0,) * len(shape), shape), ways, index) for index in range(ways)]
        assert {share.shape[dim] for share in shares} == {shape[dim] // ways}
        assert [share.start[dim] for share in shares] == [n * shape[dim] // ways for n in range(ways)]


@given(dp=st.sampled_from([1, 2, 4]), tp=st.sampled_from([1, 2, 3]), rows=st.integers(1, 3), both=st.booleans())
def test_the_ranks_boxes_tile_the_tensor(dp: int, tp: int, rows: int, both: bool) -> None:
    mesh = Mesh.of(dp=dp, tp=tp, mb=2)
    shape = (2 * dp * tp * rows, tp)
    layout = Layout.of(2, {"mb": S(0), "dp": S(0), "tp": S(0) if both else S(1)}, mesh)
    seen = torch.zeros(shape)
    for mb in range(2):
        for i in range(dp):
            for j in range(tp):
                seen[part_of(shape, layout, mesh, {"mb": mb, "dp": i, "tp": j}).slices] += 1
    assert (seen == 1).all()


def test_the_outermost_axis_of_a_dim_takes_the_largest_steps() -> None:
    mesh = Mesh.of(dp=2, tp=2, mb=2)
    layout = Layout.of(1, {"mb": S(0), "dp": S(0)}, mesh)
    assert part_of((8,), layout, mesh, {"mb": 1, "dp": 0}) == Part((4,), (2,))
    assert part_of((4,), layout, mesh, {"mb": 1}) == Part((2,), (2,))
