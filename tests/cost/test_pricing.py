"""Prices: local sizes under a strategy, fusion, what is kept, collectives inside bodies, once a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost import DataAxis, Operator, Prices, operators_of
from autoplan.cost.interleaved import split_backward
from autoplan.cost.operators.operator_seconds import local_factors, matmul_extents
from autoplan.cost.step import after_line_s, held_microbatches, optimizer_passes, optimizer_states, timeline
from autoplan.ir.buckets import LEAST_BYTES, bucket_bytes
from autoplan.ir.graph import Block, Node, Ref, Typed
from autoplan.ir.layout import I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.options import Training
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy, axis_strategies
from autoplan.runtime.optim.optimizer_options import known_classes
from autoplan.search.inter_op.parameter_shares import neighbours
from cost_models.collective import all_gather_seconds, all_reduce_seconds
from cost_models.compute import many_kernels_seconds, matmul_seconds, memory_bound_seconds
from cost_models.optimizers import OPTIMIZERS
from cost_models.pipeline.shared import Sharing
from tests.support.hand_made import f32, llama

MESH = Mesh.of(dp=2, tp=4, mb=2)
TOPOLOGY = ClusterSpec.parse("1x8 h100-sxm").topology()


def prices(mesh: Mesh = MESH, *, fuses: bool = True, training: bool = True) -> Prices:
    return Prices(mesh, TOPOLOGY, fuses, training, mesh.size("mb"), 7.0)


def block_of(name: str, dtype: str = "bfloat16") -> Block:
    model = llama(batch=8, seq=256, hidden=512, ffn=1024, vocab=4096, dtype=dtype)
    return next(b for b in model.blocks if b.name == name)


def strategy(operator: Operator, **states: State) -> Strategy:
    """On each axis the strategy whose result is in the given state (R where none is given)."""
    single = axis_strategies(operator.rule, operator.operands, operator.carries)
    chosen = []
    for axis in MESH.names:
        wanted = states.get(axis, R)
        chosen.append((axis, next(s for s in single if s.output == wanted)))
    return Strategy(tuple(chosen))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_multiplies_once_for_each_place_of_its_smaller_side(transposed: bool) -> None:
    """[4, 8, 16, 16] and a 2x2 kernel of stride two, down to 8x8 or up to 32x32, each from 8 to 12 channels."""
    size, filters = (32, (8, 12, 2, 2)) if transposed else (8, (12, 8, 2, 2))
    pair, none = (2, 2), (0, 0)
    args = (Ref("x"), Ref("w"), None, pair, none, (1, 1), transposed, none, 1)
    node = Node("conv", "aten.convolution.default", args, (), f32(4, 12, size, size))
    x, w = Typed("x", f32(4, 8, 16, 16)), Typed("w", f32(*filters))
    block = Block("Conv", (x,), (), (w,), (), (node,), ("conv",))
    conv = operators_of(block, fuses=True)["conv"]
    places = 4 * (16 * 16 if transposed else 8 * 8)
    columns, inner = (12 * 2 * 2, 8) if transposed else (12, 8 * 2 * 2)  # each place becomes 2x2 places of the result
    assert matmul_extents(conv, conv.sizes) == (places, columns, inner, 1)


def test_a_split_divides_the_factor_that_it_names() -> None:
    linear = operators_of(block_of("Layer"), fuses=True)["gate"]
    columns = strategy(linear, tp=S(2), dp=S(0), mb=S(0))
    assert matmul_extents(linear, local_factors(linear, columns, MESH)) == (2 * 256, 1024 // 4, 512, 1)
    rows = strategy(linear, tp=P, dp=S(0), mb=S(0))
    assert rows.on("tp").inputs == (S(2), S(1))
    assert matmul_extents(linear, local_factors(linear, rows, MESH)) == (2 * 256, 1024, 512 // 4, 1)


def test_a_matmul_goes_back_once_for_each_operand() -> None:
    linear = operators_of(block_of("Layer"), fuses=True)["gate"]
    cost = prices().operator(linear, strategy(linear, tp=S(2), dp=S(0), mb=S(0)))
    extents = ((512, 256, 512), (512, 512, 256), (512, 256, 512))  # (m, n, k): x wᵀ, then what goes back to x and to w
    ahead, *back = (float(matmul_seconds(*e, 1, "bfloat16", TOPOLOGY.device)) for e in extents)
    assert cost.forward_s == pytest.approx(ahead) and cost.backward_s == pytest.approx(sum(back))
    assert prices(training=False).operator(linear, strategy(linear)).backward_s == 0


def test_in_eager_mode_every_operator_pays_its_dispatch() -> None:
    """A GPU's kernels run while the framework goes on; a CPU does one after the other."""
    add = operators_of(block_of("Layer", "float32"), fuses=False)["r2"]
    for cluster, together in (("1x8 h100-sxm", max), ("1x8 cpu", lambda *both: sum(both))):
        topology = ClusterSpec.parse(cluster).topology()
        eager, compiled = (Prices(MESH, topology, fuses, True, 2).operator(add, strategy(add)) for fuses in (0, 1))
        dispatch_s = topology.device.dispatch_s
        assert eager.forward_s == pytest.approx(together(dispatch_s, compiled.forward_s))
        added_s = float(memory_bound_seconds(3 * 8 * 256 * 512 * 4, topology.device))
        assert add.joins == (True, False)  # the first operand is used before, and its gradients are added up
        assert eager.backward_s == pytest.approx(2 * dispatch_s + together(dispatch_s, added_s))


def test_what_is_fused_is_neither_moved_nor_kept() -> None:
    fused, apart = (operators_of(block_of("Layer"), fuses=f) for f in (True, False))
    assert (fused["act"].writes, apart["act"].writes) == (False, True)
    assert fused["prod"].reads == (False, True) and apart["prod"].reads == (True, True)
    assert fused["prod"].keeps == (1,) and apart["prod"].keeps == (0, 1)
    whole = strategy(apart["act"])
    assert prices().operator(fused["act"], whole).forward_s < prices().operator(apart["act"], whole).forward_s


def test_parameters_and_constants_are_not_kept_again() -> None:
    operators = operators_of(block_of("Layer"), fuses=False)
    assert operators["gate"].rule.saved == (0, 1) and operators["gate"].keeps == (0,)
    assert operators_of(block_of("Embed"), fuses=False)["embed"].keeps == ()


def test_a_look_up_reads_no_more_than_it_returns() -> None:
    embed = operators_of(block_of("Embed"), fuses=True)["embed"]
    table = 4096 * 512 * 2
    whole_s = table / (TOPOLOGY.device.memory_bandwidth_bytes_per_s * TOPOLOGY.device.memory_efficiency)
    cost = prices().operator(embed, strategy(embed, dp=S(0), mb=S(0)))
    assert cost.forward_s < whole_s + TOPOLOGY.device.kernel_launch_s
    assert cost.backward_s > whole_s


def test_the_collectives_of_a_body_are_priced() -> None:
    loss = operators_of(block_of("Head"), fuses=True)["loss"]
    split = next(s for s in loss.rule.extra if s.communicates)
    on_rows = AxisStrategy((S(0), S(0), R), P)
    chosen = Strategy((("dp", on_rows), ("tp", split), ("mb", on_rows)))
    steps = [each.step for each in prices().inside(loss, chosen)]
    rows = 8 // 4 * 256
    one = ("all-reduce", "")
    assert [(s.forward, s.backward, s.forward_bytes) for s in steps] == [(*one, rows * 4), (*one, 2 * rows * 4)]
    node = replace(loss.node, args=(*loss.node.args[:4], 0.1))  # smoothed labels: all logits are summed, too
    smooth = [each.step.forward_bytes for each in prices().inside(replace(loss, node=node), chosen)]
    assert smooth == [rows * 4, 3 * rows * 4]
    alone = Strategy((("dp", on_rows), ("tp", AxisStrategy((I, R, R), I)), ("mb", on_rows)))
    assert prices().inside(loss, alone) == ()


def test_what_windows_see_of_the_neighbours_is_sent_and_priced() -> None:
    """Rows of a picture split over tp, under a kernel of three: each rank gets one row from either side."""
    x, w = Typed("x", f32(8, 16, 64, 32)), Typed("w", f32(16, 16, 3, 3))
    args = (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    node = Node("y", "aten.convolution.default", args, (), x.type)
    block = Block("Conv", (x,), (), (w,), (), (node,), ("y",))
    conv = operators_of(block, fuses=True)["y"]
    rows = next(s for s in conv.rule.extra if s.output == S(2))
    on_batch = AxisStrategy((S(0), R), S(0))
    (sent,) = prices().inside(conv, Strategy((("dp", on_batch), ("tp", rows), ("mb", on_batch))))
    assert sent.step.forward_bytes == sent.step.backward_bytes == 2 * (8 // 4) * 16 * 32 * 4  # two rows
    assert sent.open_forward_s > 0


def test_a_redistribution_costs_its_collectives_forward_and_backward() -> None:
    kind = f32(8, 64, 128)
    partial, whole, shared = (Layout.of(3, {"dp": S(0), "mb": S(0), "tp": s}, MESH) for s in (P, I, R))
    local = 8 // 4 * 64 * 128 * 4
    reduce_s = float(all_reduce_seconds(local, TOPOLOGY.axis(1, 4)))
    found = prices().move(kind, partial, whole, True)
    assert found is not None and found[0].forward_s == pytest.approx(reduce_s) and found[0].backward_s == 0
    back = prices().move(kind, whole, shared, True)
    assert back is not None and back[0].forward_s == 0 and back[0].backward_s == pytest.approx(reduce_s)
    split = Layout.of(3, {"dp": S(0), "mb": S(0), "tp": S(1)}, MESH)
    gather = prices().move(kind, split, shared, False)
    assert gather is not None and gather[0].seconds == pytest.approx(
        float(all_gather_seconds(local, TOPOLOGY.axis(1, 4)))
    )


def test_nothing_is_exchanged_between_microbatches() -> None:
    split, whole = (Layout.of(1, {"mb": s}, MESH) for s in (S(0), R))
    assert prices().move_s(f32(8), split, whole, False) is None


def test_a_parameter_is_summed_once_a_step_and_not_in_each_microbatch() -> None:
    kind = f32(512, 512)
    shared, kept = (Layout.of(2, {"dp": R, "mb": R, "tp": s}, MESH) for s in (R, S(0)))
    one = Mesh.of(dp=2, tp=4, mb=1)
    once_s, added_s = prices(one).stored_s(kind, shared), prices().accumulate_s(512 * 512 * 4)
    assert prices().stored_s(kind, shared) == pytest.approx((once_s + added_s) / 2)  # added up in the second of two
    assert prices().stored_s(kind, shared) > prices().stored_s(kind, kept)


@pytest.mark.parametrize(("zero", "parameters", "gradients", "optimizer"), [(0, 1, 1, 1), (3, 0.5, 0.5, 0.5)])
def test_zero_shares_states_out(zero: int, parameters: float, gradients: float, optimizer: float) -> None:
    data = DataAxis(zero, 2, prices())
    assert (data.parameter_share, data.gradient_share, data.optimizer_share) == (parameters, gradients, optimizer)


def test_buckets_hide_under_the_backward_all_but_the_last() -> None:
    total = 8e8
    each = bucket_bytes(total)
    one_s = float(all_reduce_seconds(each, TOPOLOGY.axis(4, 2)))
    rest_s = float(all_reduce_seconds(total % each, TOPOLOGY.axis(4, 2)))
    slowed = 1 + TOPOLOGY.device.overlap_slowdown
    data = DataAxis(0, 2, prices())
    spent_s, hidden_s = data.once_s([each, total - each], 1.0, 100.0)
    assert spent_s == pytest.approx(total // each * one_s + rest_s)
    assert hidden_s == pytest.approx(spent_s * (1 - each / total) / slowed)
    assert data.once_s([total / 2, total / 2], 1.0, 100.0)[1] == pytest.approx(spent_s / 2 / slowed)
    assert data.once_s([each, total - each], 1.0, 1e-4)[1] == pytest.approx(1e-4 * (1 - each / total))
    assert data.once_s([LEAST_BYTES], 1.0, 100.0)[1] == 0
    assert DataAxis(0, 2, prices(), late=True).once_s([each, total - each], 1.0, 100.0) == (spent_s, 0.0)


def test_local_steps_share_the_price_of_an_average() -> None:
    total, states = 8e8, 2
    alone = DataAxis(0, 2, prices(), local_steps=4, averaged=1.0 + states)
    spent_s, hidden_s = alone.once_s([total], 1.0, 100.0)
    assert hidden_s == 0 and spent_s == pytest.approx(alone.buckets_s(3 * total) / 4)
    assert alone.copies_once_s(total) == pytest.approx(2 * 3 / 4 * DataAxis(0, 2, prices()).copies_once_s(total))


def test_neighbours_send_one_another_what_each_has() -> None:
    total, each = 8e8, bucket_bytes(8e8)
    one, two, seldom = (DataAxis(0, 4, prices(), neighbours=n, local_steps=k) for n, k in ((1, 1), (2, 1), (2, 4)))
    sent_s = total // each * prices().sent_s(each, "dp") + prices().sent_s(total % each, "dp")
    assert one.once_s([total], 1.0, 100.0) == (pytest.approx(sent_s), 0.0)
    assert two.once_s([total], 1.0, 100.0)[0] == pytest.approx(2 * sent_s)
    assert seldom.once_s([total], 1.0, 100.0)[0] == pytest.approx(sent_s / 2)
    assert [neighbours(graph, n) for graph in ("", "ring", "exponential") for n in (2, 4)] == [0, 0, 1, 2, 1, 1]


def test_two_versions_are_held_and_one_is_copied() -> None:
    two, one = DataAxis(0, 1, prices(), versions=2), DataAxis(0, 1, prices())
    assert (two.parameter_share, one.parameter_share) == (2, 1)
    assert two.gradient_share == one.gradient_share and two.optimizer_share == one.optimizer_share
    assert two.copies_once_s(1e8) == pytest.approx(DataAxis(0, 2, prices()).copies_once_s(1e8))
    assert one.copies_once_s(1e8) == 0


def test_zero_hides_under_compute_what_it_gathers_and_scatters() -> None:
    size = 1e8
    spent_s, hidden_s = DataAxis(1, 2, prices()).once_s([size], 1.0, 1.0)
    slowed = TOPOLOGY.device.overlap_slowdown
    assert hidden_s == pytest.approx(spent_s / (1 + slowed)) and spent_s > 0
    sharded = DataAxis(3, 2, prices())
    assert sharded.once_s([size], 1.0, 1.0) == (0.0, 0.0)
    assert sharded.exposed_forward_s(0.0, size) == sharded.gather_s(size) > 0
    assert sharded.exposed_forward_s(1.0, size) == pytest.approx(sharded.gather_s(size) * slowed / (1 + slowed))


def test_nothing_hides_where_a_program_waits_for_every_collective() -> None:
    cpu = ClusterSpec.parse("1x4 cpu").topology()
    mesh = Mesh.of(dp=4, mb=1)
    data = DataAxis(1, 4, Prices(mesh, cpu, False, True, 1))
    spent_s, hidden_s = data.once_s([1e6, 2e6], 1.0, 1.0)
    assert hidden_s == 0
    assert spent_s == pytest.approx(sum(data.gather_s(s) + data.scatter_s(s) for s in (1e6, 2e6)))
    waits_s = DataAxis(3, 4, Prices(mesh, cpu, False, True, 1)).exposed_forward_s(1.0, 1e6)
    assert waits_s == pytest.approx(data.gather_s(1e6))


def test_dense_weights_are_shared_along_the_experts_axis_too() -> None:
    """Of a parameter whose gradient is summed over ep ZeRO keeps 1/(dp·ep), of an expert 1/dp; each has its group."""
    listed = prices(Mesh.of(dp=2, ep=4, tp=1, mb=1))
    dense, expert = {("ep",): 8e6}, {(): 8e6}
    both, once = DataAxis(3, 2, listed, wide=("ep",)), listed.collective_s
    assert (both.ways(("ep",)), both.ways(())) == (8, 2)
    assert both.gather_s(dense | expert) == once("all-gather", 8e6, "dp,ep") + once("all-gather", 8e6, "dp")
    assert DataAxis(3, 2, listed).by_group(dense | expert) == {"dp": 16e6}
    plain = DataAxis(0, 2, listed)
    assert plain.by_group(dense | expert) == {"dp,ep": 8e6, "dp": 8e6} and plain.beside(("ep",)) == ""
    assert plain.once_s([dense, expert], 0.0, 0.0)[0] == plain.buckets_s(8e6, "dp,ep") + plain.buckets_s(8e6)
    assert DataAxis(3, 2, listed).beside(("ep",)) == "ep"


def test_a_pipeline_gathers_as_often_as_a_loop_and_scatters_once() -> None:
    alone, piped = DataAxis(3, 2, prices()), DataAxis(3, 2, prices(), piped=True)
    assert (alone.gathers(8), piped.gathers(8), DataAxis(1, 2, prices(), piped=True).gathers(8)) == (16, 16, 1)
    assert piped.exposed_forward_s(0.0, 1e8) == piped.exposed_backward_s(0.0, 1e8) == piped.gather_s(1e8)
    assert alone.exposed_backward_s(0.0, 1e8) == alone.gather_s(1e8) + alone.scatter_s(1e8)
    assert piped.copies_s(1e8)[0] == piped.copies_s(1e8)[1] == alone.copies_s(1e8)[0]


def test_the_last_segment_is_gathered_once_for_forward_and_backward() -> None:
    """Its backward is next, unless a pipeline's other microbatches come between."""
    alone, piped = DataAxis(3, 2, prices()), DataAxis(3, 2, prices(), piped=True)
    assert (alone.gathers(8, last=True), piped.gathers(8, last=True)) == (8, 16)
    assert alone.exposed_backward_s(0.0, 1e8, last=True) == alone.scatter_s(1e8)
    saved = [a - b for a, b in zip(alone.copies_s(1e8), alone.copies_s(1e8, last=True), strict=True)]
    assert saved == [0.0, pytest.approx(alone.copies_s(1e8)[0])]
    assert piped.exposed_backward_s(0.0, 1e8, last=True) == piped.gather_s(1e8)
    assert DataAxis(1, 2, prices()).gathers(8, last=True) == 1


def test_gradients_of_a_split_backward_are_scattered_in_the_open() -> None:
    whole, split = (DataAxis(1, 2, prices(), piped=True, late=late) for late in (False, True))
    (spent_s, hidden_s), (same_s, less_s) = (data.once_s([1e8], 1.0, 1.0) for data in (whole, split))
    assert spent_s == same_s and hidden_s > less_s
    assert hidden_s - less_s == pytest.approx(whole.hidden_s(1.0, whole.scatter_s(1e8)))


def test_the_stage_that_opens_a_pipeline_gathers_and_scatters_its_first_segment_in_the_open() -> None:
    data, sizes = DataAxis(1, 2, prices(), piped=True), [1e8, 3e8, 2e8]
    opens = [(1e-4, 1.0), (1.0, 1.0), (1.0, 1.0)]  # a lookup hides nothing of the gather behind it
    spent_s, hidden_s = data.once_s(sizes, 2.0, 3.0, opens)
    ahead_s = data.hidden_s(1e-4, data.gather_s(3e8)) + data.hidden_s(1.0, data.gather_s(2e8))
    back_s = sum(data.hidden_s(1.0, data.scatter_s(size)) for size in sizes[1:])
    assert spent_s == data.once_s(sizes, 2.0, 3.0)[0]
    assert hidden_s == pytest.approx(ahead_s + back_s) and hidden_s < data.once_s(sizes, 2.0, 3.0)[1]


def test_a_compiled_backward_runs_twice_and_adds_up_once() -> None:
    assert split_backward(3.0, 1.5, 0.5, first=False, fuses=True) == (5.5, 3.0)
    assert split_backward(3.0, 1.5, 0.5, first=False, fuses=False) == (3.0, 1.5)
    assert split_backward(3.0, 1.5, 0.5, first=True, fuses=True) == (3.0, 3.0)


def test_ranks_sum_gradients_once_they_are_done_and_update_when_all_have() -> None:
    forward_s, weights_s = [1.0, 1.0, 1.0, 0.5], [2.0, 1.0, 1.0, 0.5]
    line = timeline("zero-bubble", forward_s, [2.0] * 4, [0.0] * 3, 8, Sharing(1, 1.0), weights_s=weights_s)
    assert line.step_s == max(line.ends_s) > min(line.ends_s)
    first = line.ends_s.index(min(line.ends_s))
    lead_s = line.step_s - line.ends_s[first]
    sums_s = [lead_s + 0.5 if rank == first else 0.0 for rank in range(4)]
    assert after_line_s(line, sums_s, [0.0, 0.0, 0.25, 0.0]) == pytest.approx(0.75)
    whole = timeline("1f1b", [1.0] * 4, [2.0] * 4, [0.0] * 3, 8, Sharing(1, 1.0))
    assert after_line_s(whole, [1.0, 0.0, 0.0, 2.0], [0.5] * 4) == 2.5


def test_what_is_sent_together_is_copied_together() -> None:
    copied_s = float(memory_bound_seconds(2 * 1e8, TOPOLOGY.device))
    axes = {zero: DataAxis(zero, 2, prices()) for zero in (0, 1, 2, 3)}
    once = {zero: data.copies_once_s(1e8) / copied_s for zero, data in axes.items()}
    each = {zero: sum(data.copies_s(1e8)) / copied_s for zero, data in axes.items()}
    assert once == pytest.approx({0: 1, 1: 2, 2: 1, 3: 0})
    assert each == pytest.approx({0: 0, 1: 0, 2: 1, 3: 3})
    assert DataAxis(0, 1, prices()).copies_once_s(1e8) == 0


def test_optimizers_hold_what_they_hold() -> None:
    assert [optimizer_states(Training(optimizer=o)) for o in ("sgd", "adam", "adamw")] == [0, 2, 2]
    assert optimizer_states(Training(optimizer="sgd", momentum=0.9)) == 1
    assert optimizer_passes(Training(clip_grad_norm=1.0)) == optimizer_passes(Training()) + 3


def test_every_optimizer_that_a_program_runs_has_its_state_priced() -> None:
    stateless, by_shape = {"sgd"}, {"adafactor", "rowwise-adagrad"}  # by_shape: without a model none is known
    for name in known_classes():
        assert name in OPTIMIZERS, name
        assert (optimizer_states(Training(optimizer=name)) > 0) is (name not in stateless | by_shape), name


def test_one_stage_holds_one_microbatch() -> None:
    assert held_microbatches("gpipe", 1, 8) == (1,)
    assert held_microbatches("1f1b", 4, 8) == (4, 3, 2, 1)
    assert held_microbatches("gpipe", 2, 8) == (8, 8)


def test_gradients_of_parameters_alike_are_summed_in_one_collective_and_updated_one_by_one() -> None:
    kind = f32(8, 8)
    whole, kept = (Layout.of(2, {"dp": I, "mb": I, "tp": s}, MESH) for s in (R, I))
    assert prices().stored_s(kind, kept, 4) == pytest.approx(4 * prices().stored_s(kind, kept))
    assert prices().stored_s(kind, kept, 4) < prices().stored_s(kind, whole, 4) < 4 * prices().stored_s(kind, whole)


def test_gradients_that_are_summed_over_a_tensor_axis_are_copied_into_a_bucket() -> None:
    """As a stage's step has it (``StageModel.priced_once_s``); those of a parameter that is whole there aren't."""
    kind, list_ = f32(512, 512), prices(Mesh.of(dp=1, tp=4, mb=1))
    whole, kept = (Layout.of(2, {"dp": R, "mb": R, "tp": s}, list_.mesh) for s in (R, I))
    summed_s = list_.collective_s("all-reduce", 512 * 512 * 4, "tp") + list_.cold_s(2 * 512 * 512 * 4)
    assert list_.stored_s(kind, whole) - list_.stored_s(kind, kept) == pytest.approx(summed_s, rel=1e-3)
    streamed_s = list_.stored_at_least_s(kind, whole, 1) - list_.stored_at_least_s(kind, kept, 1)
    copied_s = (list_.cold_s(4e9) - list_.cold_s(2e9)) * 512 * 512 * 4 / 1e9
    assert copied_s < streamed_s < summed_s
    alone = prices(Mesh.of(dp=1, tp=1, mb=1))
    assert alone.stored_s(kind, whole) == alone.stored_s(kind, kept)


def test_gradients_in_another_dtype_than_their_sum_are_read_once() -> None:
    """Half-precision gradients of two bytes into a float32 sum: 2 + 4 bytes of the first, 2 + 4 + 4 of each further."""
    one, many = (replace(prices(Mesh.of(dp=2, tp=4, mb=m)), stored=2.0) for m in (1, 5))
    each, first = (float(many_kernels_seconds(n * 1e9 / 2, many.device)) for n in (10, 6))
    assert one.added_s(1e9) == pytest.approx(first)
    assert many.added_s(1e9) == pytest.approx((first + 4 * each) / 5)
    alike = prices(Mesh.of(dp=2, tp=4, mb=5))  # the first is taken as it comes
    assert alike.added_s(1e9) == pytest.approx(4 * float(many_kernels_seconds(3e9, alike.device)) / 5)


def test_gradients_that_are_scattered_in_each_microbatch_add_up_in_shards() -> None:
    listed = replace(prices(), stored=2.0)
    whole, sharded = DataAxis(1, 4, listed), DataAxis(3, 4, listed)
    assert whole.added_s(4e9) == listed.added_s(4e9)
    assert sharded.added_s(4e9) == listed.added_s(1e9, own=2.0) < whole.added_s(4e9)
    assert DataAxis(3, 4, listed, piped=True).added_s(4e9) == whole.added_s(4e9)


def test_gradients_are_copied_from_the_dtype_that_they_come_in() -> None:
    """Of two bytes read four are written for a sum in float32, two for one in bfloat16."""
    wide = DataAxis(3, 4, replace(prices(), stored=2.0))
    narrow = DataAxis(3, 4, replace(prices(), stored=2.0, reduced=1.0))
    assert wide.scattered_copy_s(1e9) == pytest.approx(float(memory_bound_seconds(3e9, TOPOLOGY.device)))
    assert narrow.scattered_copy_s(1e9) == pytest.approx(float(memory_bound_seconds(2e9, TOPOLOGY.device)))
