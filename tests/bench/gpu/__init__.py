"""What only an accelerator shows, in parts of under ten minutes each on one device: ``python -m tests.bench.gpu``.

Every part runs on the device that it is told, "cpu" among them; a document is written only of an accelerator.

Order: `setting` (device, sizes, models), `result` (a part's table), `clock` (seconds, peaks, kernels of a step),
`attempt` (one of many measurements), the parts `correctness`, `one_rank`, `calibrated`, `predicted`, `profiled`, then
`parts` (all of them) and `document`.
"""
