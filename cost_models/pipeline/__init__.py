"""A pipeline schedule: the order of its actions, its timeline, its bubble, what it holds.

``schedule`` is the vocabulary and where a new one begins, ``order`` who does what after what, ``timeline`` the exact
time of that, ``flow`` the same much faster for GPipe and 1F1B, ``critical`` the longest path through it,
``closed_form`` the time and the bubble as formulas, ``gantt`` a drawing.
"""

from cost_models.pipeline.closed_form import bottleneck_seconds, bubble_fraction, step_seconds
from cost_models.pipeline.critical import DURATIONS, CriticalPath, Script, held_chunks, script
from cost_models.pipeline.gantt import draw
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
    "bottleneck_seconds",
    "bubble_fraction",
    "draw",
    "held_chunks",
    "in_flight",
    "rank_of",
    "runs",
    "script",
    "simulate",
    "staleness",
    "step_seconds",
    "weight_versions",
]
