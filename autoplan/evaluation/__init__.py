"""The forward of a plan alone, for any number of rows: what ``program.evaluate`` and an inference program run.

A training plan holds the graph of a training step. In evaluation the same graph has no dropout, and batch norm uses its
running statistics. Other row counts rescale that graph. Both are used only if a second trace, in evaluation and with
other rows, gives the same graph.

Order: `evaluation_graph` (the graph in evaluation), `same` (graphs compared), `handed_over` (what has
changed since a module was planned), `proof` (the second trace), `evaluation_choice` (layouts for the rows that came),
`form` (the program, printed and loaded).
"""
