"""Everything a plan consists of, as data: what plan.json holds and what every other output is made from."""

from dataclasses import dataclass, field

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative, Chosen, SearchReport
from autoplan.ir.graph import Model
from autoplan.ir.start import InitRecipe, Start
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint
from autoplan.rules.extensions import Extension

SCHEMA = 15


@dataclass(frozen=True)
class Asked:
    """What was asked for, beside model, cluster and training: a plan asked again keeps what isn't changed.

    system       a named system, whose sizes follow the cluster; "" where there is none
    parallelism  what was pinned, where no system was named
    compile      whether compilation was asked for, also where the device's programs run eagerly
    """

    system: str = ""
    parallelism: Parallelism = field(default_factory=Parallelism)
    constraints: tuple[Constraint, ...] = ()
    effort: str = "full"
    compile: bool = True

    @property
    def request(self) -> str | Parallelism:
        return self.system or self.parallelism


@dataclass(frozen=True)
class Evaluable:
    """What is known of a model's forward alone, and at other sizes of the batch; "" where nothing stands against it.

    model  why its graph in evaluation isn't that of a training step without dropout
    rows   why it isn't known for fewer rows than the planned batch has
    least  rows that the model takes at least, where it takes fewer than planned
    tokens  why neither it nor a training step is known for other numbers of tokens in a row
    least_tokens  of those that are known
    training  why a training step isn't known for fewer rows
    least_trained  rows that a step takes at least
    """

    model: str = ""
    rows: str = ""
    least: int = 1
    tokens: str = ""
    least_tokens: int = 2
    training: str = ""
    least_trained: int = 1


UNMET = "the plan was exported without its model, so nothing is known of it in evaluation"
UNKNOWN = Evaluable(UNMET, UNMET, tokens=UNMET, training=UNMET)


@dataclass(frozen=True)
class PlanRecord:
    """One plan.

    model         the traced model, in the dtype that it computes in
    chosen        how it runs; with the model it determines the program
    init          how the model's parameters are drawn, None where that isn't known
    alternatives  what else was priced
    asked         what the user pinned
    extensions    the operators that neither torch nor autoplan brings, and the modules that define them
    evaluable     what is known of the forward alone, once the plan has been exported
    start         where training starts from
    """

    cluster: ClusterSpec
    training: Training | Inference
    model: Model
    chosen: Chosen
    alternatives: tuple[Alternative, ...]
    search: SearchReport
    init: InitRecipe | None
    asked: Asked = field(default_factory=Asked)
    extensions: tuple[Extension, ...] = ()
    evaluable: Evaluable = field(default=UNKNOWN, compare=False)
    start: Start = field(default_factory=Start)
