"""The step that runs beside the step that was predicted: ``Plan.measure`` and ``autoplan measure``.

Modules, each importing only those before it:

    spans         sets of spans of time
    rank_step     what a rank's step is made of, by its profile
    profiled      a step under torch.profiler
    measurement   the result and its text
    part_by_part  predicted beside measured
    on_ranks      a program's steps, timed and profiled
    processes     processes of this machine that do so
"""

from autoplan.measurement.measurement import Measured, Measurement
from autoplan.measurement.processes import measure

__all__ = ["Measured", "Measurement", "measure"]
