"""Seconds and bytes: what hardware costs, without a graph, a layout or torch.

A cost function takes floats, arrays or symbols and gives the same number, or a formula. Figures of devices come from
`profiles/`, each with its source.

Order: `errors` (a profile's error), `arithmetic` (functions of floats, arrays and symbols), `figures` (a file of
figures), `hardware` (devices, links, topologies), `compute` (an operator's seconds), `collective` (a collective's
seconds), `optimizers` (what they keep), `offload` (the host's memory), `pipeline` (schedules), `sensitivity` (formulas
and slopes), `calibrate` (measures a machine).
"""
