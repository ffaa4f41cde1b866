"""Proof that a graph of a training step, rescaled, is what the module computes in evaluation with other rows.

What is planned is one trace: in training, with the rows of the planned batch. A module may take another way where
``self.training`` is false, or where the batch has other rows (``x.sum() / 8``, ``squeeze()``); neither shows in that
trace. So the module is traced again in evaluation, with one row less and with a single row, and the graphs compared.
A module that takes another way at some number of rows in between, but at neither of these, isn't found out.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from autoplan.errors import AutoplanError
from autoplan.evaluation.same import difference
from autoplan.ir.graph import Model, batch_rows
from autoplan.ir.record import Evaluable
from autoplan.models.inputs import Inputs
from autoplan.trace.rescale import rescale

Retrace = Callable[[Inputs], Model]


@dataclass(frozen=True)
class Given:
    """What a plan was made of.

    inputs   the batch
    traced   the graph of the module with that batch, as planned
    retrace  the graph in evaluation, with another batch
    """

    module: nn.Module
    inputs: Inputs
    traced: Model
    retrace: Retrace


def prove(given: Given) -> Evaluable:
    """What is known of the forward alone, by two traces more; by others where fewer rows make another graph."""
    rows = batch_rows(given.traced)
    found = [*map(functools.partial(against, given), sorted({rows - 1, 1}, reverse=True))] if rows > 1 else []
    least = 1
    if len(found) == 2 and found[1].refused and not found[0].text and rows > 3:
        found[1], least = against(given, 2), 2  # the module itself takes no single row
    fewer = next((one.text for one in found if one.text), "" if found else "the planned batch has no more")
    return Evaluable(against(given, rows).text if fewer else "", fewer, 1 if fewer else least)


@dataclass(frozen=True)
class Compared:
    """text  how two graphs differ, "" where they don't; refused  whether the module can't be traced at all"""

    text: str
    refused: bool = False


def against(given: Given, rows: int) -> Compared:
    """The module in evaluation with so many rows against the planned graph, rescaled."""
    try:
        found = given.retrace(with_rows(given.inputs, batch_rows(given.traced), rows))
    except Exception as error:  # whatever it is, training goes on without: it is told where evaluation is asked for
        return Compared(said(error), refused=True)
    try:
        different = difference(rescale(given.traced, batch=rows, compared=True), found)
    except Exception as error:
        return Compared(said(error))
    counted = f"{rows} row{'s' * (rows != 1)}"
    return Compared(different and f"its graph in evaluation with {counted} differs: {different}")


def said(error: Exception) -> str:
    return f"{error}" if isinstance(error, AutoplanError) else f"{type(error).__name__}: {error}"


def with_rows(inputs: Inputs, was: int, rows: int) -> Inputs:
    """The batch with other rows, without values."""

    def other(value: torch.Tensor) -> torch.Tensor:
        shape = (rows, *value.shape[1:]) if value.shape[:1] == (was,) else value.shape
        return torch.empty(shape, dtype=value.dtype, device="meta")

    if isinstance(inputs, Mapping):
        return {name: other(value) for name, value in inputs.items()}
    return tuple(map(other, inputs))
