"""What a price depends on: closed forms, slopes, elasticities and crossovers, from symbols put into a cost function.

A cost function that is given a SymPy symbol in place of a number answers with an expression; ``symbol`` makes one. From
the expression come ``closed_form`` (to be read), ``compiled`` (thousands of points at once), ``sensitivities`` (what a
percent more of each is worth) and ``compare`` and ``fastest`` (where one recipe overtakes another)::

    sequence, speed = symbol("sequence"), symbol("network speed")
    cluster = with_bandwidth(topology, 1, speed)
    zero = step_seconds(replace(model, sequence=sequence), Recipe(data=32, zero=3), cluster, closed_form=True).seconds
    sensitivities(zero, {sequence: 4096, speed: 1})

Order: `expression` (read, compiled, made smooth), `slope` (slopes and elasticities), `crossing` (where one recipe
overtakes another). docs/appendix/prices.md has the cost functions' formulas and a worked example.
"""

from cost_models.sensitivity.crossing import Comparison, Span, compare, crossings, fastest
from cost_models.sensitivity.expression import closed_form, compiled, regime, symbol, trend
from cost_models.sensitivity.slope import Sensitivity, derivative, sensitivities, with_bandwidth

__all__ = [
    "Comparison",
    "Sensitivity",
    "Span",
    "closed_form",
    "compare",
    "compiled",
    "crossings",
    "derivative",
    "fastest",
    "regime",
    "sensitivities",
    "symbol",
    "trend",
    "with_bandwidth",
]
