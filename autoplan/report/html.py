"""The report as one self-contained page."""

import html

from autoplan.ir.record import PlanRecord
from autoplan.report.text import report_text
from autoplan.report.words import headline

STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; max-width: 122ch; padding: 0 1rem; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; }
h1 { font-size: 1.3rem; margin: 0; }
h2 { font-size: 1rem; margin: 2rem 0 .3rem; border-bottom: 1px solid #8888; }
p { margin: .2rem 0; }
pre { margin: 0; overflow-x: auto; font: inherit; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def report_html(record: PlanRecord) -> str:
    """``report_text`` with a heading for each of its sections; no script, nothing loaded from elsewhere."""
    title, *sections = report_text(record).rstrip("\n").split("\n\n")
    name, _, summary = title.partition("\n")
    parts = [f"<h1>{html.escape(name)}</h1>", preformatted(summary.partition("\n")[2])]
    for section in sections:
        heading, _, body = section.partition("\n")
        parts += [f"<h2>{html.escape(heading)}</h2>", preformatted(body)]
    return PAGE.format(title=html.escape(f"{name}: {headline(record)}"), style=STYLE, body="\n".join(parts))


def preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
