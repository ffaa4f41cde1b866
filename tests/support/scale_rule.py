"""A rule of a user's own, registered when this module is imported, as each rank of a program imports it."""

from __future__ import annotations

import autoplan
from autoplan.rules.registry import Rule
from tests.support import custom_operators


@autoplan.rule(custom_operators.scale)
def scale_rule(x: object, w: object, k: float = 2.0) -> Rule:
    return Rule("a b, b -> a b", linear=((0,), (1,)), saved=(0, 1))
