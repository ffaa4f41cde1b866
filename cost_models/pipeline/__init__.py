"""A pipeline schedule: the order of its actions, its timeline, its bubble, what it holds.

A new schedule begins in `schedule`. Modules, each importing only those before it:

    schedule     the schedules: which rank has which stage, which microbatch counts they run, what they hold
    order        each rank's actions in order, as exported programs run them
    times        seconds of each stage's forward and backward, and of each message
    bottleneck   what one more microbatch adds to a step
    flow         the timelines of GPipe and 1F1B by array operations, which is much faster
    timeline     the exact timeline of any schedule, by running its actions
    critical     the longest path through a schedule
    shared       the timeline where stages share processors
"""

from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.critical import DURATIONS, CriticalPath, Script, held_chunks, script
from cost_models.pipeline.order import Action, actions, in_flight
from cost_models.pipeline.schedule import ASYNCHRONOUS, ROUNDS, SCHEDULES, SPLIT, rank_of, staleness, weight_versions
from cost_models.pipeline.timeline import AHEAD, Run, Timeline, runs, simulate

__all__ = [
    "AHEAD",
    "ASYNCHRONOUS",
    "DURATIONS",
    "ROUNDS",
    "SCHEDULES",
    "SPLIT",
    "Action",
    "CriticalPath",
    "Run",
    "Script",
    "Timeline",
    "actions",
    "bottleneck_of",
    "held_chunks",
    "in_flight",
    "rank_of",
    "runs",
    "script",
    "simulate",
    "staleness",
    "weight_versions",
]
