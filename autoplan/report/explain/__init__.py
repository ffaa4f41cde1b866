"""Questions to a plan: one operator, one module, or a plan that wasn't taken.

Order: `one_change` (one operator run in another way), `operator` (an operator or a module: its split, the alternatives,
the price of each), `alternative` (another plan beside this one, and why it wasn't taken).
"""

from autoplan.report.explain.alternative import alternative_text, asked_for
from autoplan.report.explain.operator import explain_text

__all__ = ["alternative_text", "asked_for", "explain_text"]
