"""`check_rule` proves a rule by running every strategy on simulated ranks and comparing with one device.

A rule is a claim: that parts, computed apart and put together as their layouts say, are the whole. `suggest` finds a
rule for an operator that has none, by trying splits.

Modules, each importing only those before it:

    case             one call with real tensors
    simulate         the ranks of a mesh in one process
    differ           ranks against one device
    keeps            what autograd saves
    report           the result as a table
    counterexamples  the error of a wrong strategy
    check            `check_rule`
    shapes           which dims change together
    suggest          a rule by trying
    lacking          that every operator of a traced model has a rule
"""

from autoplan.rules.check.check import check_rule
from autoplan.rules.check.lacking import check_rules
from autoplan.rules.check.report import Row, RuleReport

__all__ = ["Row", "RuleReport", "check_rule", "check_rules"]
