"""A program planned under its setting, some of its operators pinned to layouts drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autoplan.cluster import ClusterSpec
from autoplan.compile import asked_of, compile_model, traced_model
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Block, Model, Node
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.start import Start
from autoplan.options import Training
from autoplan.rules.constraints import Constraint, pin
from autoplan.rules.registry import rule_of
from autoplan.rules.strategies import Strategy, strategies
from autoplan.verify.variants import in_float64
from tests.equality.programs.program import Module, Program, batch_of
from tests.equality.programs.setting import Setting
from tests.support.planning import alone

UNCUT = "the model is a chain of"  # fewer parts than stages are asked for: replicas take their place
TRAINING = Training(optimizer="sgd", learning_rate=0.1)


def plan_of(program: Program, setting: Setting) -> PlanRecord:
    """The plan in float64, with as many pins as leave one, and with stages where the model can be cut. What can't
    be planned at all is an error."""
    module, batch = Module(program), batch_of(program)
    traced = traced_model(module, batch, None, TRAINING)
    pins = random_pins(traced, setting, random.Random(f"pins {program.seed}"))
    while True:
        try:
            return in_float64(planned_with(traced, setting, [p for one in pins for p in one]))
        except ParallelismError as error:
            if not pins and UNCUT not in str(error):
                raise
            if not pins:
                setting = setting.without_stages
            pins = pins[: len(pins) // 2]


def planned_with(traced: Model, setting: Setting, pins: Sequence[Constraint]) -> PlanRecord:
    cluster = ClusterSpec.of(f"1x{setting.ranks} cpu")
    with alone():
        asked = asked_of(setting.parallelism, pins, TRAINING, "fast")
        return compile_model(traced, cluster, TRAINING, asked, None, Start())


def random_pins(model: Model, setting: Setting, chance: random.Random) -> list[list[Constraint]]:
    """For some operators a way to run them, drawn from all that their rules give: its result's state on each tensor
    axis."""
    mesh = Mesh.of(**dict(zip(TENSOR, setting.tensor, strict=False)))
    nodes = [(block, node) for block in model.blocks for node in block.nodes]
    chosen = chance.sample(nodes, round(setting.pins * len(nodes)))
    found = []
    for block, node in chosen:
        way = chance.choice(ways_of(block, node, mesh))
        found.append([pin(node.name, str(s.output), axis=axis) for axis, s in way.axes])
    return found


def ways_of(block: Block, node: Node, mesh: Mesh) -> tuple[Strategy, ...]:
    """Every way to run an operator on the tensor axes, whole rows taken for granted."""
    types, carrying = block.types(), block.carries_gradient()
    carries = [name in carrying for name in node.operands]
    return strategies(rule_of(node, types), [types[name] for name in node.operands], node.type, carries, mesh)
