"""Views in the trace: what was merged for one operator comes apart again, so that every dim of it can be split."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from autoplan.ir.graph import Argument, Model, Node, Ref, TensorType
from autoplan.ir.typed_program import Compute, Move
from autoplan.options import Parallelism
from autoplan.trace.builder import Builder, overload
from autoplan.trace.passes.clean import used
from autoplan.trace.passes.views import short_views
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret
from tests.support.planning import parallelize_alone
from tests.support.sampling import examples

pytestmark = pytest.mark.usefixtures("verified_in_pool")

torch.set_num_threads(1)

HIDDEN, HEADS, ROWS, LENGTH = 16, 4, 8, 6


class Encoder(nn.Module):
    """torch's own encoder, and a head. Where the batch isn't first for its layers, it is turned for them."""

    def __init__(self, layers: int = 1, *, batch_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 2 * HIDDEN, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, 12)
        self.turned = not batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x.transpose(0, 1)).transpose(0, 1) if self.turned else self.encoder(x)
        return self.head(x)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, LENGTH, HIDDEN, generator=generator), torch.randn(ROWS, LENGTH, 12, generator=generator)


def nodes_of(model: Model, op: str) -> list[Node]:
    return [node for block in model.blocks for node in block.nodes if node.op == op]


def assert_equal(module: nn.Module, inputs: tuple[torch.Tensor, ...], *, mse: bool = False) -> Model:
    """The traced module has its loss and its gradients."""
    model = trace(module, inputs, loss_fn=F.mse_loss if mse else None, training=True)
    state = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    got = interpret(model, state, dict(zip((v.name for v in model.batch), inputs, strict=True)))
    loss = F.mse_loss(module(inputs[0]), inputs[1]) if mse else module(*inputs)
    torch.testing.assert_close(got, loss)
    got.backward()
    loss.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(state[name].grad, parameter.grad, msg=name)
    return model


class Rows(nn.Module):
    """A linear on rows that one reshape makes of a tensor of more dims, and a reshape that ends that."""

    def __init__(self, rows: tuple[int, int], after: tuple[int, ...]) -> None:
        super().__init__()
        self.fc, self.rows, self.after = nn.Linear(rows[1], 3), rows, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.relu().reshape(self.rows)).reshape(self.after).square().mean()


@pytest.mark.parametrize(
    ("shape", "rows", "after", "contracted"),
    [
        ((6, 8, 16), (48, 16), (6, 8, 3), (6, 8, 3)),
        ((6, 8, 4, 4), (48, 16), (6, 8, 3), (6, 8, 3)),  # rows and heads are merged by one reshape
        ((6, 8, 2, 2, 4), (48, 16), (6, 8, 3), (6, 8, 3)),
        ((6, 8, 32), (96, 16), (6, 8, 2, 3), (6, 8, 2, 3)),  # part of a dim is among the rows
        ((48, 4, 4), (48, 16), (6, 8, 3), (48, 3)),  # nothing but what a row holds is merged
        ((6, 4), (4, 6), (2, 2, 3), (4, 3)),  # a row begins amid another
    ],
)
def test_a_linear_keeps_the_dims_that_were_flattened_for_it(
    shape: tuple[int, ...], rows: tuple[int, int], after: tuple[int, ...], contracted: tuple[int, ...]
) -> None:
    model = assert_equal(Rows(rows, after), (torch.randn(shape),))
    (linear,) = nodes_of(model, "aten.linear.default")
    assert linear.type.shape == contracted


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_computes_what_it_did(batch_first: bool) -> None:
    model = assert_equal(Encoder(2, batch_first=batch_first), batch(), mse=True)
    assert {len(node.type.shape) for node in nodes_of(model, "aten.linear.default")} == {3}


@pytest.mark.parametrize(("batch_first", "micro_batch"), [(True, 1), (False, 2)])
def test_an_encoder_s_batch_is_split(batch_first: bool, micro_batch: int) -> None:
    module = Encoder(batch_first=batch_first)
    chosen = Parallelism(dp=4, tp=1, pp=1, micro_batch=micro_batch)
    plan = parallelize_alone(module, "1x4 cpu", batch(), loss_fn=F.mse_loss, parallelism=chosen)
    assert (plan.parallelism.dp, plan.parallelism.micro_batch) == (4, micro_batch)
    assert plan.verify().passed


def test_an_encoder_s_heads_are_split_as_megatron_splits_them() -> None:
    """Queries, keys and values by their heads, and nothing is ever gathered."""
    chosen = Parallelism(dp=2, tp=2, pp=1, sequence_parallel=False)
    module = Encoder(2)
    plan = parallelize_alone(module, "1x4 cpu", batch(), loss_fn=F.mse_loss, parallelism=chosen)
    bodies = [block.body for block in plan.lowered.blocks]
    attentions = [s for body in bodies for s in body if isinstance(s, Compute) and "attention" in s.op]
    assert {s.value.local_shape for s in attentions} == {(ROWS // 2, HEADS // 2, LENGTH, HIDDEN // HEADS)}
    moved = [s for body in bodies for s in body if isinstance(s, Move)]
    kinds = {kind for s in moved for step in s.collectives for kind in (step.forward, step.backward)}
    assert "all-reduce" in kinds and not any("gather" in kind for kind in kinds)
    assert plan.verify().passed


class Stacked(nn.Module):
    """Queries, keys and values of one projection, told apart by a dim of their own, as timm's attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(x).reshape(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, HIDDEN)
        return self.proj(x).square().mean()


def test_a_projection_s_rows_in_a_dim_of_their_own_are_projections() -> None:
    model = assert_equal(Stacked(), batch()[:1])
    names = [p.name for p in model.parameters if p.source == "qkv.weight"]
    assert names == ["qkv.weight[0:16]", "qkv.weight[16:32]", "qkv.weight[32:48]"]
    assert not nodes_of(model, "aten.select.int") and not nodes_of(model, "aten.slice.Tensor")


Step = tuple[str, tuple[Argument, ...]]


def chained(shape: Sequence[int], steps: Sequence[Step]) -> tuple[list[Node], list[Node], str]:
    """A chain of views of "x"; the nodes as they are, in their shorter form, and the result's name in the latter."""
    builder = Builder()
    x = builder.enter("x", TensorType(tuple(shape), "float32"))
    for op, arguments in steps:
        x = builder.emit(op, x, *arguments)
    before = list(builder.nodes.values())
    nodes, output = short_views(builder, before, x.name)
    return before, list(used(nodes, output)), output


def evaluated(nodes: Sequence[Node], x: torch.Tensor) -> dict[str, torch.Tensor]:
    values = {"x": x}
    for node in nodes:
        values[node.name] = overload(node.op)(*(values[a.name] if isinstance(a, Ref) else a for a in node.args))
        assert values[node.name].shape == node.type.shape
    return values


RESHAPE, PERMUTE, TRANSPOSE, SELECT, SLICE = (
    f"aten.{op}" for op in ("reshape.default", "permute.default", "transpose.int", "select.int", "slice.Tensor")
)


@pytest.mark.parametrize(
    ("shape", "steps", "expected"),
    [
        (  # heads stand inside the batch only on the way
            (6, 8, 16),
            [(RESHAPE, ((6, 32, 4),)), (TRANSPOSE, (0, 1)), (RESHAPE, ((8, 4, 6, 4),))],
            [(RESHAPE, ((6, 8, 4, 4),)), (PERMUTE, ((1, 2, 0, 3),))],
        ),
        ((4, 6), [(RESHAPE, ((24,),)), (RESHAPE, ((2, 2, 6),)), (RESHAPE, ((4, 6),))], []),
        ((2, 6), [(TRANSPOSE, (0, 1)), (RESHAPE, ((12,),)), (RESHAPE, ((6, 2),)), (TRANSPOSE, (0, 1))], []),
        ((4, 6), [(RESHAPE, ((4, 2, 3),)), (SELECT, (1, 1))], [(SLICE, (1, 3, 6))]),
        ((4, 6), [(RESHAPE, ((4, 3, 2),)), (SELECT, (2, 1))], None),  # every second one: no slice of neighbours
        ((4, 6), [(SELECT, (1, 1))], None),
        ((4, 6), [(TRANSPOSE, (0, 1)), (RESHAPE, ((4, 6),)), (TRANSPOSE, (0, 1))], None),  # rows begin amid others
        ((4, 6), [(RESHAPE, ((2, 2, 6),)), (TRANSPOSE, (0, 1)), (RESHAPE, ((4, 6),))], None),  # no shorter way
    ],
)
def test_chains_in_their_shorter_form(shape: tuple[int, ...], steps: list[Step], expected: list[Step] | None) -> None:
    _, nodes, _ = chained(shape, steps)
    assert [(node.op, node.args[1:]) for node in nodes] == (steps if expected is None else expected)


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    x, steps = torch.empty(shape, device="meta"), []
    for _ in range(draw(st.integers(1, 7))):
        op, arguments = draw(step(x.shape))
        x = overload(op)(x, *arguments)
        steps.append((op, arguments))
    return shape, steps


@st.composite
def step(draw: st.DrawFn, shape: Sequence[int]) -> Step:
    dims, rank = list(shape), len(shape)
    kinds = [PERMUTE, "aten.unsqueeze.default", "cut"] + ([TRANSPOSE, SELECT, "aten.squeeze.dim", "merge"] * (rank > 1))
    kind, at = draw(st.sampled_from(kinds)), draw(st.integers(0, max(rank - 1, 0)))
    if kind == PERMUTE:
        return PERMUTE, (tuple(draw(st.permutations(range(rank)))),)
    if kind == TRANSPOSE:
        return TRANSPOSE, (at, draw(st.integers(0, rank - 1)))
    if kind == SELECT:
        return SELECT, (at, draw(st.integers(0, dims[at] - 1)))
    if kind == "merge":
        at = min(at, rank - 2)
        return RESHAPE, ((*dims[:at], dims[at] * dims[at + 1], *dims[at + 2 :]),)
    if kind == "cut" and rank:
        outer = draw(st.sampled_from([n for n in range(1, dims[at] + 1) if dims[at] % n == 0]))
        return RESHAPE, ((*dims[:at], outer, dims[at] // outer, *dims[at + 1 :]),)
    return (kind, (at,)) if rank and kind != "cut" else ("aten.unsqueeze.default", (0,))


@examples(150)
@given(chains())
def test_a_shorter_form_has_the_same_values(chain: tuple[tuple[int, ...], list[Step]]) -> None:
    shape, steps = chain
    before, nodes, output = chained(shape, steps)
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert torch.equal(evaluated(nodes, x)[output], evaluated(before, x)[before[-1].name])
    assert len(nodes) <= len(before) + sum(op == SELECT for op, _ in steps)
