"""What the closed forms say of a case."""

from __future__ import annotations

import inspect
from collections import Counter

from tests.bench.closed_form.case import (
    EXPERTS_BACKWARD,
    EXPERTS_FORWARD,
    LAYER,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    STEP,
    Case,
)
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.result import TableResult, results_of
from tests.bench.closed_form.rows import Read
from tests.bench.closed_form.transformer.layer import layer_operators
from tests.bench.closed_form.transformer.step import exchange_s, layer_passes, step_seconds

MIXTURE = ("router", "permutation", "experts up", "activation", "experts down")
"""The operators of a layer that are its mixture."""


def predicted_s(case: Case) -> float:
    """Seconds of what the case measured."""
    if case.what == STEP:
        return float(step_seconds(case.model, case.recipe, case.topology).seconds)
    if case.what in (EXPERTS_FORWARD, EXPERTS_BACKWARD):
        return _mixture_s(case)
    layer = layer_passes(case.model, case.recipe, case.topology)
    times = {
        LAYER_FORWARD: layer.forward_s,
        LAYER_BACKWARD: layer.backward_s,
        LAYER: layer.forward_s + layer.backward_s,
    }
    return float(times[case.what])


def _mixture_s(case: Case) -> float:
    """A mixture's operators, and its tokens sent to their experts and back."""
    model, recipe, device = case.model, case.recipe, case.topology.device
    operators = [operator for operator in layer_operators(model, recipe, device) if operator.name in MIXTURE]
    forward = case.what == EXPERTS_FORWARD
    busy_s = sum(operator.forward_s if forward else operator.backward_s for operator in operators)
    return float(busy_s + exchange_s(model, recipe, case.topology))


def point_of(case: Case) -> Point:
    """A case with its prediction, in seconds."""
    label = case.label if case.what == STEP else f"{case.label}, {case.what}"
    return Point(case.row, label, case.group, case.device, predicted_s(case), case.measured_s)


def result_of(read: Read) -> tuple[TableResult, ...]:
    """A table's errors, for each device that it holds."""
    quantity = "step time, s" if all(case.what == STEP for case in read.cases) else "layer time, s"
    reasons = Counter(row.reason for row in read.left_out)
    return results_of(
        read.table.name, quantity, [point_of(case) for case in read.cases],
        inspect.cleandoc(read.table.cases.__doc__ or ""), read.table.file,
        [(count, reason) for reason, count in reasons.items()], read.table.fitted,
    )  # fmt: skip
