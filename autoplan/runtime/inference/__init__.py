"""The forward alone, for any number of rows, in training programs and in inference programs.

Order: `given` (rows as ranks give them), `lending` (modules that lend their parameters to other code), `lockstep` (all
stages of a pipeline together), `forward` (the whole result on every rank), `program` (`Inference()` on one rank).
"""
