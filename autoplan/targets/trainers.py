"""Trainers by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from autoplan.arguments.values import TRAINERS, options_text
from autoplan.errors import InputsError
from autoplan.ir.record import PlanRecord
from autoplan.options import Training
from autoplan.targets.accelerate import accelerate
from autoplan.targets.config import ExportedConfig
from autoplan.targets.deepspeed import deepspeed
from autoplan.targets.megatron import megatron
from autoplan.targets.nanotron import nanotron
from autoplan.targets.plan_figures import Values, values_of
from autoplan.targets.torchtitan import torchtitan

KINDS: Mapping[str, Callable[[Values], ExportedConfig]] = dict(
    zip(TRAINERS, (megatron, torchtitan, deepspeed, accelerate, nanotron), strict=True)
)


def config_of(record: PlanRecord, kind: str) -> ExportedConfig:
    """The plan in a trainer's words, not priced yet. InputsError for a trainer that isn't known."""
    if kind not in KINDS:
        raise InputsError(f"kind={kind!r}", "no such trainer is known", f"give one of {', '.join(KINDS)}")
    values = values_of(record)
    found = KINDS[kind](values)
    return replace(found, lost=(*found.lost, *training_lost(values.training)))


def training_lost(training: Training) -> Iterator[str]:
    """What of a training no trainer's file says here."""
    if training.expert_capacity is not None:
        capacity = f"expert_capacity={training.expert_capacity:g}"
        yield f"{capacity}: it counts by rows of the batch, a trainer's own by what a rank has of one"
    if training.lr_schedule is not None:
        yield f"lr_schedule {training.lr_schedule.name}: not in this file, give the trainer its own"
    for group in training.groups:
        told = ", ".join(filter(None, [group.optimizer or "", options_text(dict(group.options))]))
        yield f"the group {group.title!r} with {told}: not in this file, make the optimizer with this group"
    if training.optimizer_options:
        yield f"optimizer_options {options_text(dict(training.optimizer_options))}: not in this file"
    if training.draws_by_rank:
        yield "randomness='per-rank': a trainer draws dropout in its own way"
