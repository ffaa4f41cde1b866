"""A rule is a claim: that parts, computed apart and put together as their layouts say, are the whole. ``check_rule``
proves it by running every strategy; ``suggest`` finds a rule for an operator that has none, by trying what fails.
``check_rules`` is the pass of a traced model that misses none."""

from autoplan.rules.check.check import check_rule
from autoplan.rules.check.lacking import check_rules
from autoplan.rules.check.report import Row, RuleReport

__all__ = ["Row", "RuleReport", "check_rule", "check_rules"]
