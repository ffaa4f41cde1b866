"""A typed program priced anew, statement by statement, from its local shapes: what the search said must be this."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autoplan.cost import Cost, Operator, Prices
from autoplan.cost.operators.collective_ops import BODIES
from autoplan.cost.operators.operator_seconds import price_operator
from autoplan.ir.choice import StageChoice, tensor_mesh
from autoplan.ir.graph import Block, Node, TensorType
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Compute, LoweredBlock, LoweredStage, Move, TypedValue
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from autoplan.rules.registry import factor_sizes
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.account import BlockCost, price_block
from autoplan.search.evaluate import Evaluated, finish
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.solve import Solution
from autoplan.search.repriced import candidate_of
from autoplan.search.state import SearchState, begin
from tests.support.emitted_moments import local_bytes, moments_of

ALONE = (Strategy(()), Mesh(()))  # local tensors are whole tensors of one device


@dataclass(frozen=True)
class Emitted:
    """One segment of an emitted block in one microbatch: seconds forward and backward, bytes as in ``BlockCost``."""

    forward_s: float
    backward_s: float
    kept_bytes: int
    input_bytes: int
    output_bytes: int
    constant_bytes: int
    working_bytes: int
    parameter_bytes: tuple[int, ...]


def local_type(value: TypedValue) -> TensorType:
    return TensorType(value.local_shape, value.type.dtype)


def price_emitted(block: Block, written: LoweredBlock, operators: dict[str, Operator], prices: Prices) -> Emitted:
    """The sum over the statements of a block; of the untraced block only what carries a gradient, and which values
    stay inside a compiled kernel, is asked."""
    carries = set(block.carries_gradient())
    values = {v.name: v for v in (*written.inputs, *written.externals, *written.parameters, *written.buffers)}
    total = Cost()
    weights_s, sums_s = dict[str, float](), dict[str, float]()
    for statement in written.body:
        values[statement.value.name] = statement.value
        if isinstance(statement, Move):
            cost = price_move(statement, statement.source in carries, prices)
            total, sums_s[statement.value.name] = total + cost, cost.backward_s
            if statement.source in carries:
                carries.add(statement.value.name)
            continue
        operator = operators[statement.value.name]
        cost = price_compute(statement, operator, values, prices)
        total, weights_s[statement.value.name] = total + cost, cost.weights_s
    hidden_s = sum(
        prices.under_products_s(sums_s[moved], sum(weights_s[product] for product in products))
        for moved, products in written.hidden
    )  # fmt: skip
    held = moments_of(written, operators, carries, prices.training)
    return Emitted(
        total.forward_s, total.backward_s - hidden_s, held.kept,
        sum(map(local_bytes, written.inputs)), sum(map(local_bytes, written.outputs)),
        sum(map(local_bytes, written.externals)), held.working, tuple(map(local_bytes, written.parameters)),
    )  # fmt: skip


def price_move(move: Move, carries: bool, prices: Prices) -> Cost:
    """Each collective as it is written in the program."""
    steps = (prices.step(step, carries, local_bytes(move.value), move.value.type) for step in move.collectives)
    return sum(steps, Cost())


def price_compute(statement: Compute, operator: Operator, values: dict[str, TypedValue], prices: Prices) -> Cost:
    """The operator on its local tensors, as on one device, and the collectives of the body that runs in its place."""
    node = Node(statement.value.name, statement.op, statement.args, statement.kwargs, local_type(statement.value))
    reads = tuple(local_type(values[name]) for name in node.operands)
    local = replace(operator, node=node, operands=reads, sizes=local_sizes(operator, reads, node.type))
    total = price_operator(local, *ALONE, prices.device, fuses=prices.fuses, training=prices.training)
    for axis in statement.body_axes if statement.body in BODIES else ():
        if prices.mesh.size(axis) > 1:
            steps = BODIES[statement.body](operator, list(reads[0].shape), axis)
            total += sum((prices.step(step, operator.result_carries) for step in steps), Cost())
    return total


def local_sizes(operator: Operator, reads: tuple[TensorType, ...], result: TensorType) -> dict[str, int]:
    """The factors' sizes on one rank, which only products are priced by."""
    if operator.rule.cost != "matmul":
        return {}
    return factor_sizes(replace(operator.rule, sizes={}), reads, result)


def emitted_blocks(record: PlanRecord) -> list[Emitted]:
    """Every block of a plan's program."""
    chosen, lowered, work = record.chosen, program_of(record), work_of(record)
    prices = work.operators.prices(tensor_mesh(chosen.mesh), chosen.parallelism.pipeline_schedule or "")
    known = zip(record.model.blocks, lowered.blocks, work.prepared.operators, strict=True)
    return [price_emitted(block, written, dict(operators), prices) for block, written, operators in known]


def work_of(record: PlanRecord) -> SearchState:
    return begin(record.model, record.cluster, record.training, Parallelism())


def simulated(record: PlanRecord) -> Evaluated:
    """The plan's step time and memory from its emitted blocks and stages, the schedule run anew."""
    setting, work, lowered = candidate_of(record), work_of(record), program_of(record)
    prices = work.operators.prices(tensor_mesh(record.chosen.mesh), setting.schedule)
    parts = zip(record.model.blocks, record.chosen.blocks, work.prepared.operators, emitted_blocks(record), strict=True)
    blocks = tuple(
        as_emitted(price_block(block, choice, known, prices), found, prices) for block, choice, known, found in parts
    )
    point = IntraOpPlan(record.chosen.blocks, blocks, Solution((), (), 0, 0, 0, 0, 0))
    stages = tuple(stage_of(stage) for stage in lowered.stages)
    return finish(setting, point, work.evaluator.costs.stage_model(setting, point), stages, 0.0)


def as_emitted(price: BlockCost, found: Emitted, prices: Prices) -> BlockCost:
    """A block's price with what its emitted statements say in its place. What an eager program holds operator by
    operator is no sum over statements: tests/search/test_search_live.py follows the storages of programs that run."""
    said = vars(found)
    if not prices.fuses:
        said = {name: value for name, value in said.items() if name not in ("kept_bytes", "working_bytes")}
    return replace(price, **said)


def stage_of(stage: LoweredStage) -> StageChoice:
    shared = {f.name for f in fields(StageChoice)} & {f.name for f in fields(LoweredStage)}
    return StageChoice(**{name: getattr(stage, name) for name in shared})
