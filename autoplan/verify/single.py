"""One device as a plan: the same graph on a mesh of one rank, where every layout is whole.

The reference where there is no module to run: a plan that was loaded from its folder, or one that was shrunk.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from autoplan.ir.choice import BlockChoice, StageChoice, tensor_mesh
from autoplan.ir.graph import Model, batch_rows
from autoplan.ir.layout import Layout, R
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy

Of = TypeVar("Of")


def on_one_device(record: PlanRecord) -> PlanRecord:
    """The plan of the same model on one device, one microbatch, nothing recomputed; with older versions of the weights
    where it has them. Where each microbatch has its own statistics, there are as many as in the plan."""
    model, chosen = record.model, record.chosen
    count = chosen.microbatches if record.training.microbatch_statistics else 1
    mesh = Mesh.of(pp=1, dp=1, tp=1, mb=count)
    chosen = replace(
        chosen,
        mesh=mesh,
        microbatches=count,
        parallelism=Parallelism(
            dp=1, tp=1, pp=1, zero=0, micro_batch=batch_rows(model) // count, pipeline_schedule="gpipe",
            virtual_stages=1, recompute="none", sequence_parallel=False, staleness=chosen.parallelism.staleness,
        ),
        batch=tuple(alone(layout, mesh) for layout in chosen.batch),
        constants=tuple((name, alone_on(strategy, mesh)) for name, strategy in chosen.constants),
        blocks=tuple(block_choice(c, mesh) for c in chosen.blocks),
        stages=(StageChoice(0, len(model.segments)),),
    )
    return replace(record, chosen=chosen)


def alone(layout: Layout, mesh: Mesh) -> Layout:
    """Whole, but over several microbatches."""
    return Layout.of(layout.rank, microbatches(mesh, layout.state), tensor_mesh(mesh))


def alone_on(strategy: Strategy, mesh: Mesh) -> Strategy:
    whole = AxisStrategy(tuple(R for _ in strategy.axes[0][1].inputs), R)
    over = microbatches(mesh, strategy.on)
    return Strategy(tuple((axis.name, over.get(axis.name, whole)) for axis in tensor_mesh(mesh).axes))


def microbatches(mesh: Mesh, of: Callable[[str], Of]) -> dict[str, Of]:
    """What an axis says, of that of the microbatches, where there are several."""
    return {MICROBATCH: of(MICROBATCH)} if mesh.size(MICROBATCH) > 1 else {}


def block_choice(choice: BlockChoice, mesh: Mesh) -> BlockChoice:
    return BlockChoice(
        inputs=tuple(alone(layout, mesh) for layout in choice.inputs),
        outputs=tuple(alone(layout, mesh) for layout in choice.outputs),
        parameters=tuple((name, alone(layout, mesh)) for name, layout in choice.parameters),
        externals=tuple((name, alone(layout, mesh)) for name, layout in choice.externals),
        strategies=tuple((name, alone_on(strategy, mesh)) for name, strategy in choice.strategies),
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
