"""The report as one self-contained page: charts in HTML and SVG, nothing loaded from elsewhere.

Positions are percentages, so that a chart is as wide as its page; a figure that a chart shows stands beside it as
`data-` attributes, unrounded. `assets/` holds the style, and a few lines of script to zoom and to read a chart.

Modules, each importing only those before it:

    chart         axes, legends, escaping
    time_bar      what a step's time goes to
    memory        each stage against the limit
    timeline      the schedule
    layer         a block's operators and collectives
    alternatives  time against memory
    scaling       step time over devices and bandwidth
    rehearsed     what a rehearsal measured
    page          the page
"""

from autoplan.report.html.page import report_html

__all__ = ["report_html"]
