"""Trainers by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoplan.arguments.values import TRAINERS
from autoplan.errors import InputsError
from autoplan.ir.record import PlanRecord
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
    found, capacity = KINDS[kind](values_of(record)), getattr(record.training, "expert_capacity", None)
    if capacity is None:
        return found
    said = f"expert_capacity={capacity:g}: it counts by rows of the batch, a trainer's own by what a rank has of one"
    return replace(found, lost=(*found.lost, said))
