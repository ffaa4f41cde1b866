"""An auto-parallel planner and graph compiler for PyTorch.

`parallelize` takes a model and a cluster and returns a `Plan`. The plan says how every operator and parameter is
split, what a step is predicted to cost, and why. `Plan.export` writes it as a readable sharded program.

Data flow down: `trace` reads the model, `rules` say how its operators may be split, `cost` prices what would run,
`search` chooses, `lower` gives every tensor its layout, `emit` prints the program, `runtime` runs it. `ir` is the
vocabulary that all of them share. docs/architecture.md walks one operator through every pass.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from autoplan.errors import AutoplanError, InputsError

if TYPE_CHECKING:
    from autoplan.api import parallelize
    from autoplan.cli import __version__
    from autoplan.cluster import ClusterSpec
    from autoplan.comparison import Comparison, compare
    from autoplan.ir.graph import TensorType
    from autoplan.ir.parameter_groups import ParameterGroup
    from autoplan.lr_schedule import LRSchedule
    from autoplan.options import Inference, Parallelism, Training
    from autoplan.plan import Plan, load
    from autoplan.rules.check import RuleReport, check_rule
    from autoplan.rules.constraints import forbid, pin, replicated
    from autoplan.rules.registry import AxisStrategy, Rule, rule, unregister

__all__ = [
    "AutoplanError", "AxisStrategy", "ClusterSpec", "Comparison", "Inference", "LRSchedule", "Parallelism",
    "ParameterGroup", "Plan", "Rule", "RuleReport", "TensorType", "Training", "__version__", "check_rule", "compare",
    "forbid", "load", "parallelize", "pin", "replicated", "rule", "unregister",
]  # fmt: skip

HOMES = {
    "autoplan.api": ("parallelize",),
    "autoplan.cli": ("__version__",),
    "autoplan.cluster": ("ClusterSpec",),
    "autoplan.comparison": ("Comparison", "compare"),
    "autoplan.ir.graph": ("TensorType",),
    "autoplan.ir.parameter_groups": ("ParameterGroup",),
    "autoplan.lr_schedule": ("LRSchedule",),
    "autoplan.options": ("Inference", "Parallelism", "Training"),
    "autoplan.plan": ("Plan", "load"),
    "autoplan.rules.check": ("RuleReport", "check_rule"),
    "autoplan.rules.constraints": ("forbid", "pin", "replicated"),
    "autoplan.rules.registry": ("AxisStrategy", "Rule", "rule", "unregister"),
}
"""Where each name lives. Its module is imported when it is first asked for: a rank that loads a plan and trains needs
no search, no prices and no solver."""
RENAMED = {"Schedule": "LRSchedule"}

if not TYPE_CHECKING:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> object:
        for home, names in HOMES.items():
            if name in names:
                globals()[name] = found = getattr(import_module(home), name)
                return found
        if name in RENAMED:
            raise InputsError(f"autoplan.{name}", "it has another name", f"write autoplan.{RENAMED[name]}")
        raise AttributeError(f"module 'autoplan' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
