"""Everything a plan consists of, as data: what plan.json holds and what every other output is made from."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cluster import ClusterSpec
from autoplan.graph import Model
from autoplan.initialise import InitRecipe
from autoplan.lower import lower
from autoplan.options import Inference, Training
from autoplan.precision import in_precision
from autoplan.search.choice import Alternative, Chosen, SearchReport
from autoplan.typecheck import typecheck
from autoplan.typed import Lowered

SCHEMA = 4


@dataclass(frozen=True)
class PlanRecord:
    """One plan.

    model         the traced model, in the dtype that it computes in
    chosen        how it runs; with the model it determines the program
    init          how the model's parameters are initialised, None where that isn't known
    alternatives  what else was priced
    """

    cluster: ClusterSpec
    training: Training | Inference
    model: Model
    chosen: Chosen
    alternatives: tuple[Alternative, ...]
    search: SearchReport
    init: InitRecipe | None

    def lowered(self) -> Lowered:
        """The typed program; LayoutError where the layouts don't follow from one another."""
        program = lower(self.model, self.chosen)
        typecheck(program)
        return program

    def in_float64(self) -> PlanRecord:
        """The same plan, computing in float64: what exactness is measured with."""
        assert isinstance(self.training, Training)
        return PlanRecord(
            cluster=self.cluster,
            training=self.training.with_precision("fp64"),
            model=in_precision(self.model, "fp64"),
            chosen=self.chosen,
            alternatives=self.alternatives,
            search=self.search,
            init=self.init,
        )
