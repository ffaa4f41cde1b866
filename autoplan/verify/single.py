"""One device as a plan: the same graph on a mesh of one rank, where every layout is whole.

The reference where there is no module to run: a plan that was loaded from its folder, or one that was shrunk.
"""

from dataclasses import replace

import torch

from autoplan.ir.choice import BlockChoice, StageChoice, tensor_mesh
from autoplan.ir.graph import Block, Model, Node, Typed
from autoplan.ir.layout import Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy

ONE = Mesh.of(pp=1, dp=1, tp=1, mb=1)


def on_one_device(record: PlanRecord) -> PlanRecord:
    """The plan of the same model on one device, one microbatch, nothing recomputed; with two versions of the weights
    where it has them."""
    model = record.model
    schedule = "pipedream-2bw" if record.chosen.parallelism.two_versions else "gpipe"
    chosen = replace(
        record.chosen,
        mesh=ONE,
        microbatches=1,
        parallelism=Parallelism(1, 1, 1, 0, model.batch[0].type.shape[0], schedule, 1, "none", False, None),
        batch=tuple(whole(value) for value in model.batch),
        constants=tuple((node.name, replicated(node)) for node in model.constants),
        blocks=tuple(block_choice(block) for block in model.blocks),
        stages=(StageChoice(0, len(model.segments)),),
    )
    return replace(record, chosen=chosen)


def whole(value: Typed) -> Layout:
    return Layout.of(len(value.type.shape), {}, tensor_mesh(ONE))


def replicated(node: Node) -> Strategy:
    alone = AxisStrategy(tuple(R for _ in node.operands), R)
    return Strategy(tuple((axis.name, alone) for axis in tensor_mesh(ONE).axes))


def block_choice(block: Block) -> BlockChoice:
    types = block.types()
    return BlockChoice(
        inputs=tuple(whole(v) for v in block.inputs),
        outputs=tuple(whole(Typed(name, types[name])) for name in block.outputs),
        parameters=tuple((v.name, whole(v)) for v in block.parameters),
        externals=tuple((v.name, whole(v)) for v in block.externals),
        strategies=tuple((node.name, replicated(node)) for node in block.nodes),
        hops=(),
    )


def random_state(model: Model, seed: int) -> dict[str, torch.Tensor]:
    """Weights and buffers under the names that the user's model has for them; float64, of the sizes that matter.

    Matrices are normal with variance 1/columns, vectors near one: nothing vanishes, nothing explodes.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {}
    for parameter in model.parameters:
        shapes |= {member.source: member.shape for member in parameter.members}
        if parameter.members:
            continue
        shape = list(parameter.type.shape)
        if parameter.dim >= 0:
            shape[parameter.dim] = max(parameter.stop, shapes.get(parameter.source, shape)[parameter.dim])
        shapes[parameter.source] = tuple(shape)
    state = {name: random_parameter(shape, generator) for name, shape in shapes.items()}
    for parameter in model.parameters:
        state |= {alias: state[parameter.source] for alias in parameter.aliases}
        state |= {alias: state[member.source] for member in parameter.members for alias in member.aliases}
    for buffer in model.buffers:
        if buffer.type.floating:
            state[buffer.name] = 0.5 + torch.rand(buffer.type.shape, generator=generator, dtype=torch.float64)
        else:
            state[buffer.name] = torch.zeros(buffer.type.shape, dtype=getattr(torch, buffer.type.dtype))
    return state


def random_parameter(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.1 * values
