"""One recipe's plan as each trainer's configuration: read by the trainer's parser, planned back from what it read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.errors import AutoplanError
from autoplan.models.named import resolve_model
from autoplan.options import Training
from autoplan.plan import Plan
from tests.bench.recipes.row import Recipe
from tests.support.target_parsers import PARSERS, parsed, pins_of

SAME = 1e-9  # relative: both are prices of one plan, found anew


@dataclass(frozen=True)
class Cell:
    """What became of a plan in a trainer's words.

    lost        how many lines tell what the trainer has no words for
    exported_s  the step of what the configuration says, planned again; 0 where it doesn't fit
    back_s      that of what the trainer's own parser has read, planned again
    refused     why there is no configuration that runs, or what the parser says against it
    absent      the trainer isn't installed
    """

    lost: int = 0
    exported_s: float = 0.0
    back_s: float = 0.0
    refused: str = ""
    absent: bool = False

    @property
    def same(self) -> bool:
        return not self.refused and math.isclose(self.exported_s, self.back_s, rel_tol=SAME)


@dataclass(frozen=True)
class Row:
    """A recipe's plan, or why there is none, and its cells by trainer."""

    name: str
    text: str
    plan: str = ""
    step_s: float = 0.0
    reason: str = ""
    cells: Mapping[str, Cell] | None = None

    def to_dict(self) -> dict:
        return asdict(self)


def row_of(data: dict) -> Row:
    """``Row.to_dict`` undone."""
    cells = None if data["cells"] is None else {kind: Cell(**cell) for kind, cell in data["cells"].items()}
    return Row(**{**data, "cells": cells})


def check(recipe: Recipe) -> Row:
    try:
        plan = planned(recipe)
    except AutoplanError as error:
        return Row(recipe.name, recipe.text, reason=str(error))
    cells = {kind: cell(plan, kind) for kind in PARSERS}
    return Row(recipe.name, recipe.text, str(plan), plan.predicted.step_time_s, cells=cells)


def planned(recipe: Recipe) -> Plan:
    """As the recipe pins it."""
    job = recipe.job
    cluster = ClusterSpec.of(job.cluster)
    training = Training(precision="bf16-mixed", compile=cluster.profile()[0].compiles)
    request = resolve_model(job.model, job.settings, batch=job.batch, seq=job.seq)
    return autoplan.parallelize(
        request.model, cluster, request.example_inputs, loss_fn=request.loss_fn, training=training,
        parallelism=recipe.pins, effort="fast",
    )  # fmt: skip


def cell(plan: Plan, kind: str) -> Cell:
    config = plan.export_config(kind)
    lost = len(config.lost)
    if config.replanned_s is None:
        return Cell(lost, refused=config.why)
    try:
        found = parsed(config, plan.record.cluster.devices)
    except Exception as error:  # whatever the trainer's parser raises
        return Cell(lost, config.replanned_s, refused=f"its parser: {type(error).__name__}: {error}")
    if found is None:
        return Cell(lost, config.replanned_s, absent=True)
    try:
        back = plan.what_if(parallelism=pins_of(found, config), constraints=(), effort="fast")
    except AutoplanError as error:
        return Cell(lost, config.replanned_s, refused=f"planned back: {error}")
    return Cell(lost, config.replanned_s, back.predicted.step_time_s)
