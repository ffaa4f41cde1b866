"""autoplan: a model and a cluster in, a readable sharded program out."""

from autoplan.api import parallelize
from autoplan.cluster import ClusterSpec
from autoplan.comparison import Comparison, compare
from autoplan.errors import AutoplanError
from autoplan.options import Inference, Parallelism, Schedule, Training
from autoplan.plan import Plan, load
from autoplan.rule import AxisStrategy, Rule, rule
from autoplan.search.constraints import forbid, pin, replicated

__all__ = [
    "AutoplanError",
    "AxisStrategy",
    "ClusterSpec",
    "Comparison",
    "Inference",
    "Parallelism",
    "Plan",
    "Rule",
    "Schedule",
    "Training",
    "compare",
    "forbid",
    "load",
    "parallelize",
    "pin",
    "replicated",
    "rule",
]
