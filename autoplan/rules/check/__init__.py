"""A rule is a claim: that parts, computed apart and put together as their layouts say, are the whole. ``check_rule``
proves it by running every strategy; ``suggest`` finds a rule for an operator that has none, by trying what fails."""

from autoplan.rules.check.check import check_rule
from autoplan.rules.check.report import Row, RuleReport
from autoplan.rules.check.suggest import suggested_rule

__all__ = ["Row", "RuleReport", "check_rule", "suggested_rule"]
