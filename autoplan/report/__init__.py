"""A plan in words: what was chosen, why, what else was priced."""

from autoplan.report.explain import explain_text
from autoplan.report.html import report_html
from autoplan.report.prices import phases_text
from autoplan.report.text import report_text
from autoplan.report.words import headline

__all__ = ["explain_text", "headline", "phases_text", "report_html", "report_text"]
