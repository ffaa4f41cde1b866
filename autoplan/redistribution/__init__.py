"""From one layout to another by the cheapest sequence of typed collectives, found as a shortest path.

One planner finds the steps, prices them and writes them down, so a plan's price is that of its program. Forward and
backward are priced together. docs/redistribution.md explains the steps and the search.

Modules, each importing only those before it:

    steps              which change of state is which collective, each with its backward
    factors            layouts by prime factors of axes
    links              what is asked of prices: seconds of a collective; a cluster's are cost.mesh_links
    exchange           direct exchanges of index boxes
    apply              what a step makes of a layout
    written            exchanges as data, for plan.json
    space              the graph of layouts
    shortest_path      the path through it
    planner            plans of one tensor type
    steiner_tree       one tensor wanted in several layouts
    follow             the layout after a written step
    common_refinement  layouts across a reshape
    hidden             those whose backward runs under weights' gradients
    chunks             those that are cut beside a product
    shared_experts     what runs beside a mixture's tokens on their way
"""

from autoplan.errors import LayoutError
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.factors import simplify, sized
from autoplan.redistribution.follow import follow
from autoplan.redistribution.links import UNIFORM, AxisLinks, Links
from autoplan.redistribution.planner import Planner, Redistribution
from autoplan.redistribution.steps import NEUTRAL_STEPS, STEPS, Step, find_step, neutral, transition
from autoplan.redistribution.written import step_seconds


def redistribute(
    source: Layout, target: Layout, type: TensorType, mesh: Mesh, *, carries_gradient: bool, links: Links = UNIFORM
) -> tuple[Collective, ...]:
    """The fastest sequence of steps from one layout to another; empty where both are the same.

    Least is the sum of the steps' seconds, forward and backward, on these links; among equals the fewest steps. Every
    rank finds the same. No rank holds more on the way than at the start or at the end, save where one end names prime
    factors of an axis by which the other splits a dim that it doesn't divide: that axis is gathered in between.

    LayoutError where a layout doesn't fit the tensor and the mesh, and where there is no way: the microbatches' axis
    would change, or a P(max) that carries a gradient.
    """
    return Planner(type, mesh, carries_gradient=carries_gradient, links=links).plan(source, target).collectives


__all__ = [
    "NEUTRAL_STEPS", "STEPS", "UNIFORM", "AxisLinks", "LayoutError", "Links", "Planner", "Redistribution", "Step",
    "find_step", "follow", "neutral", "redistribute", "simplify", "sized", "step_seconds",
    "transition",
]  # fmt: skip
