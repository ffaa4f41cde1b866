"""Elastic training whose batch follows the number of ranks: each keeps the rows that the exported plan has for one.

A step is then another than before the change: its gradient is a mean over other rows. Whether the learning rate follows
is the user's to say. In proportion to the batch: Goyal et al. 2017, "Accurate, Large Minibatch SGD"; to its root:
Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks".
"""

from autoplan.errors import LaunchError
from autoplan.option_values import SET_RATES
from autoplan.options import Inference, Training

KEEP, SCALE = "keep", "scale"
BATCHES = (KEEP, SCALE)
RATES = {KEEP: 0.0, "linear": 1.0, "sqrt": 0.5}  # the power of the batch's ratio


def scaled_rows(rows: int, devices: int, ranks: int) -> int:
    """Rows of a step on so many ranks, where a plan for ``devices`` of them has ``rows``.

    LaunchError where that is no whole number.
    """
    if rows * ranks % devices:
        cause = f"the plan has {rows} rows for {devices} ranks, which are {rows * ranks / devices:g} for {ranks}"
        raise LaunchError(f"a batch scaled to {ranks} ranks", cause, "start another number of them, or keep the batch")
    return rows * ranks // devices


def check_rate(training: Training | Inference, how: str) -> None:
    """LaunchError where the learning rate can't follow the batch, at once and not when the batch first changes."""
    schedule = training.lr_schedule.name if isinstance(training, Training) and training.lr_schedule else ""
    if how != KEEP and schedule in SET_RATES:
        cause = f"the schedule {schedule} sets every rate from {SET_RATES[schedule]}"
        raise LaunchError(f"--elastic-rate {how}", cause, "give --elastic-rate keep, or plan with another schedule")


def scaled_rate(rate: float, how: str, rows: int, planned: int) -> float:
    """The learning rate of a step of ``rows`` rows, where that of ``planned`` rows is ``rate``."""
    return rate * (rows / planned) ** RATES[how]
