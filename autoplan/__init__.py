"""autoplan: a model and a cluster in, a readable sharded program out."""

from typing import TYPE_CHECKING

from autoplan.api import parallelize
from autoplan.cluster import ClusterSpec
from autoplan.compare import Comparison, compare
from autoplan.errors import AutoplanError, InputsError
from autoplan.ir.graph import TensorType
from autoplan.ir.parameter_groups import ParameterGroup
from autoplan.options import Inference, LRSchedule, Parallelism, Training
from autoplan.plan import Plan, load
from autoplan.rules.check import RuleReport, check_rule
from autoplan.rules.constraints import forbid, pin, replicated
from autoplan.rules.registry import AxisStrategy, Rule, rule, unregister

__all__ = [
    "AutoplanError", "AxisStrategy", "ClusterSpec", "Comparison", "Inference", "LRSchedule", "Parallelism",
    "ParameterGroup", "Plan", "Rule", "RuleReport", "TensorType", "Training", "check_rule", "compare", "forbid",
    "load", "parallelize", "pin", "replicated", "rule", "unregister",
]  # fmt: skip

RENAMED = {"Schedule": "LRSchedule"}

if not TYPE_CHECKING:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> object:
        if name in RENAMED:
            raise InputsError(f"autoplan.{name}", "it has another name", f"write autoplan.{RENAMED[name]}")
        raise AttributeError(f"module 'autoplan' has no attribute {name!r}")
