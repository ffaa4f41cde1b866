"""autoplan: a model and a cluster in, a readable sharded program out."""

from autoplan.api import parallelize
from autoplan.cluster import ClusterSpec
from autoplan.compare import Comparison, compare
from autoplan.errors import AutoplanError
from autoplan.ir.graph import TensorType
from autoplan.ir.parameter_groups import ParameterGroup
from autoplan.options import Inference, Parallelism, Schedule, Training
from autoplan.plan import Plan, load
from autoplan.rules.check import RuleReport, check_rule
from autoplan.rules.constraints import forbid, pin, replicated
from autoplan.rules.registry import AxisStrategy, Rule, rule, unregister

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
