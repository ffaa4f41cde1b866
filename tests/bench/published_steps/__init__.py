"""Published steps planned as they were run: ``python -m tests.bench.published_steps``, a part of ``make validate``.

rows      which rows of the published tables are planned, and what was measured of each
job       a row's model by name, its training, cluster and pins
traits    what a row's program does otherwise than ours, as changes of prices
price     the plans of rows that share a trace
fitting   a device's figures from the plans of its rows: ``python -m tests.bench.published_steps.fitting``
document  the errors by family, beside those of the closed form
"""
