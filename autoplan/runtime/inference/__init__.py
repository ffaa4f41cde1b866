"""The forward alone, for any number of rows, in training programs and in inference programs.

Order: `agreed_batch` (rows as ranks give them), `shared_parameters` (modules that lend their parameters to other code),
`pipelined_forward` (all stages of a pipeline together), `forward` (the whole result on every rank), `inference_program`
(`Inference()` on one rank).
"""
