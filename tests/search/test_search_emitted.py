"""A plan's objective is the sum of the prices of what is emitted: step time and memory, recomputed from the program.

And what is found for one block of many holds for all of them: folded or not, the objective is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Model
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Move
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism, Training
from autoplan.search.inter_op.peak_memory import peaks_of
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem import build
from autoplan.search.intra_op.problem_inputs import prepare
from autoplan.search.intra_op.solve import solve
from examples import unet
from tests.support import zoo
from tests.support.emitted import price_emitted, price_move, simulated, work_of
from tests.support.hand_made import llama, mlp
from tests.support.planning import parallelize_alone
from tests.support.records import record_of

PINNED = {
    "dp": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=1),
    "tp": Parallelism(dp=1, tp=4, pp=1, micro_batch=8),
    "tp2 dp2 zero3": Parallelism(dp=2, tp=2, pp=1, zero=3, micro_batch=2),
    "pp2 tp2": Parallelism(dp=1, tp=2, pp=2, zero=0, micro_batch=2),
    "pp2 dp2 zero1 recompute": Parallelism(dp=2, tp=1, pp=2, zero=1, micro_batch=1, recompute="full"),
}
MADE: dict[str, Callable[[], Model]] = {"mlp": lambda: mlp(batch=8), "llama": llama, "tied": lambda: llama(tie=True)}
ZOO = {name: PINNED["pp2 tp2"] for name in zoo.NAMES if name != "convnet"}
ZOO |= {"convnet": Parallelism(dp=2, tp=2, micro_batch=4)}

PAIRS = [(model, pinned) for model in MADE for pinned in PINNED]
QUICK = ("llama", "mlp", "convnet")


def check(record: PlanRecord) -> None:
    """Step time, and every kind of bytes of every stage, to 1e-6; the account that was held against the wall has room
    for the busiest moment."""
    found, predicted = simulated(record), record.chosen.predicted
    assert found.step_s == pytest.approx(predicted.step_time_s, rel=1e-6)
    peaks = peaks_of(found.stage_model, found.stages, found.candidate.pp)
    for here, there, account in zip(peaks, predicted.peak_bytes, found.memory, strict=True):
        assert astuple(here) == pytest.approx(astuple(there), rel=1e-6, abs=1)
        assert here.total <= account.total


@pytest.mark.parametrize(
    ("model", "pinned"),
    [p if "pp" in p[1] or p[0] == "mlp" else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS],
)
def test_the_price_of_the_plan_is_that_of_its_program(model: str, pinned: str) -> None:
    check(record_of(MADE[model](), "1x4 cpu", **PINNED[pinned].pinned()))


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_of_every_model_of_the_suite(name: str) -> None:
    module, batch, loss_fn = zoo.small(name, "meta")
    check(parallelize_alone(module, "1x4 cpu", batch, loss_fn=loss_fn, parallelism=ZOO[name]).record)


@pytest.mark.parametrize("pinned", [Parallelism(dp=2, tp=2), Parallelism(dp=4, tp=1, zero=3)], ids=str)
def test_of_compiled_convolutions(pinned: Parallelism) -> None:
    """Signs of relu, offsets of greatest elements, values that skip layers."""
    plan = parallelize_alone(
        unet.make_model(levels=2), "1x4 a100-sxm-80gb", unet.example_inputs(16), loss_fn=unet.loss_fn,
        training=Training(precision="bf16-mixed"), parallelism=pinned,
    )  # fmt: skip
    check(plan.record)


@pytest.mark.parametrize(
    "pinned", [Parallelism(tp=8), Parallelism(pp=4, tp=2), Parallelism(dp=8, tp=2, zero=3)], ids=str
)
def test_of_a_cluster_of_nodes_in_mixed_precision(pinned: Parallelism) -> None:
    model = llama(batch=16, seq=256, hidden=512, ffn=1536, vocab=4096, layers=4, dtype="bfloat16")
    check(record_of(model, "2x8 h100-sxm", Training(precision="bf16-mixed"), micro_batch=1, **pinned.pinned()))


def test_what_is_emitted_twice_is_paid_twice() -> None:
    """So that the comparison isn't of a number with itself."""
    record = record_of(llama(), "1x4 cpu", dp=1, tp=4, pp=1, micro_batch=8)
    block, written = record.model.blocks[1], program_of(record).blocks[1]
    work = work_of(record)
    prices = work.operators.prices(tensor_mesh(record.chosen.mesh))
    move = next(s for s in written.body if isinstance(s, Move) and any(step.forward for step in s.collectives))
    twice = replace(written, body=(*written.body, replace(move, value=replace(move.value, name="again"))))
    once_s, twice_s = (
        price_emitted(block, body, dict(work.prepared.operators[1]), prices).forward_s for body in (written, twice)
    )
    assert twice_s - once_s == pytest.approx(price_move(move, True, prices).forward_s, rel=1e-6) != 0


def unfolded(model: Model) -> Model:
    """The same chain with a block of its own for every segment."""
    blocks = tuple(model.blocks[segment.block] for segment in model.segments)
    segments = tuple(replace(segment, block=i) for i, segment in enumerate(model.segments))
    return replace(model, blocks=blocks, segments=segments)


@pytest.mark.parametrize("model", MADE)
def test_a_folded_problem_has_the_objective_of_the_unfolded(model: str) -> None:
    found, mesh = [], Mesh.of(dp=1, tp=2, mb=4)
    for chain in (MADE[model](), unfolded(MADE[model]())):
        prices = Prices(tensor_mesh(mesh), ClusterSpec.parse("1x4 cpu").topology(), True, True, mesh.size("mb"), 7.0)
        prepared = prepare(chain, (), fuses=True, training=True)
        found.append(solve(build(formulate(prepared, tensor_mesh(mesh), prices, split_weights=False))).objective)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("pinned", ["tp", "tp2 dp2 zero3"])
def test_a_folded_plan_takes_as_long_as_the_unfolded(pinned: str) -> None:
    given = PINNED[pinned].pinned() | {"recompute": "none"}
    folded, apart = (record_of(model, "1x4 cpu", **given) for model in (llama(layers=3), unfolded(llama(layers=3))))
    assert folded.chosen.predicted.step_time_s == pytest.approx(apart.chosen.predicted.step_time_s, rel=1e-6)
