"""autoplan: a model and a cluster in, a readable sharded program out."""

from autoplan.api import parallelize
from autoplan.cluster import ClusterSpec
from autoplan.comparison import Comparison, compare
from autoplan.errors import AutoplanError
from autoplan.graph import TensorType
from autoplan.groups import ParameterGroup
from autoplan.options import Inference, Parallelism, Schedule, Training
from autoplan.plan import Plan, load
from autoplan.rule import AxisStrategy, Rule, rule, unregister
from autoplan.rule_check import RuleReport, check_rule
from autoplan.search.constraints import forbid, pin, replicated

__all__ = [
    "AutoplanError",
    "AxisStrategy",
    "ClusterSpec",
    "Comparison",
    "Inference",
    "Parallelism",
    "ParameterGroup",
    "Plan",
    "Rule",
    "RuleReport",
    "Schedule",
    "TensorType",
    "Training",
    "check_rule",
    "compare",
    "forbid",
    "load",
    "parallelize",
    "pin",
    "replicated",
    "rule",
    "unregister",
]
