"""A PuLP problem that knows its variables."""

from __future__ import annotations

import pulp


class Registered(pulp.LpProblem):
    """PuLP collects a problem's variables anew from all constraints, several times for each solve. Here they are those
    that were made for it, in the order in which they were."""

    def __init__(self, name: str) -> None:
        super().__init__(name, pulp.LpMinimize)
        self.made: list[pulp.LpVariable] = []

    def make(
        self, low: float | None = 0, high: float | None = None, category: str = pulp.LpContinuous
    ) -> pulp.LpVariable:
        variable = pulp.LpVariable(f"x{len(self.made)}", low, high, category)
        self.made.append(variable)
        return variable

    def variables(self) -> list[pulp.LpVariable]:
        return self.made
