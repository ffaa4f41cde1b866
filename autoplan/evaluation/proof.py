"""Proof that a graph of a training step, rescaled, is what the module computes in evaluation with other rows.

What is planned is one trace: in training, with the rows of the planned batch. A module may take another way where
``self.training`` is false, or where the batch has other rows (``x.sum() / 8``, ``squeeze()``); neither shows in that
trace. So the module is traced again in evaluation, with one row less and with a single row, and the graphs compared.
A module that takes another way at some number of rows in between, but at neither of these, isn't found out.

A training step at other sizes is proved likewise, by traces in training: with one row and one token less, and with a
single row of two tokens; rows and tokens apart where these differ.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from autoplan.errors import AutoplanError
from autoplan.evaluation.handed_over import HandedOver, check_handed_over
from autoplan.evaluation.same import difference
from autoplan.ir.graph import Model, batch_rows
from autoplan.ir.record import Evaluable
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.models.inputs import Inputs
from autoplan.trace.rescale import rescale

Retrace = Callable[[Inputs], Model]


@dataclass(frozen=True)
class Given:
    """What a plan was made of.

    inputs   the batch
    traced   the graph of the module with that batch, as planned
    retrace  the graph in evaluation, with another batch
    retrain  the graph of a step, with another batch
    handed   the module's state then
    """

    module: nn.Module
    inputs: Inputs
    traced: Model
    retrace: Retrace
    retrain: Retrace
    handed: HandedOver


@dataclass(frozen=True)
class Compared:
    """text  how two graphs differ, "" where they don't; refused  whether the module can't be traced at all"""

    text: str
    refused: bool = False


def prove(given: Given) -> Evaluable:
    """What is known of the forward alone and of steps at other sizes, by two traces more of each; by others where
    fewer rows or tokens make another graph. InputsError where the module isn't any more what was planned."""
    check_handed_over(given.handed, given.module)
    rows = batch_rows(given.traced)
    found = [*map(functools.partial(against, given), sorted({rows - 1, 1}, reverse=True))] if rows > 1 else []
    least = 1
    if len(found) == 2 and found[1].refused and not found[0].text and rows > 3:
        found[1], least = against(given, 2), 2  # the module itself takes no single row
    fewer = next((one.text for one in found if one.text), "" if found else "the planned batch has no more")
    known = Evaluable(against(given, rows).text if fewer else "", fewer, 1 if fewer else least)
    return of_steps(given, known)


def of_steps(given: Given, known: Evaluable) -> Evaluable:
    """The same with what is known of a training step at other sizes."""
    rows, tokens = (planned := planned_sizes(given.traced)).rows, planned.tokens
    if rows == 1:
        known = replace(known, training="the planned batch has no more")
    if tokens < 3:
        cause = "the planned rows have no more tokens" if tokens else "the model reads no rows of tokens"
        known = replace(known, tokens=cause)
    ends = (max(rows - 1, 1), max(tokens - 1, 0)), (1, min(tokens, 2))
    if not any(trained(given, BatchSizes(*sizes)).text for sizes in ends):
        return known
    if not known.training:
        wrong, least = at_ends(rows, 2, lambda n: trained(given, BatchSizes(n, tokens)))
        known = replace(known, training=wrong, least_trained=least)
    if not known.tokens:
        wrong, least = at_ends(tokens, tokens // 2, lambda n: trained(given, BatchSizes(rows, n)), 2)
        known = replace(known, tokens=wrong, least_tokens=least)
    return known


def at_ends(planned: int, other: int, at: Callable[[int], Compared], least: int = 1) -> tuple[str, int]:
    """What differs at one less than planned, or at the least; and that least, ``other`` where the module itself takes
    no fewer."""
    first, last = at(planned - 1), at(least)
    if last.refused and not first.text and planned > other > least:
        last, least = at(other), other
    return first.text or last.text, least


def trained(given: Given, sizes: BatchSizes) -> Compared:
    """The module in training with a batch of these sizes against the planned graph, rescaled."""
    if sizes == planned_sizes(given.traced):
        return Compared("")
    return compared(given, sizes, given.retrain, f"in training with {sizes}")


def against(given: Given, rows: int) -> Compared:
    """The module in evaluation with so many rows against the planned graph, rescaled."""
    sizes = replace(planned_sizes(given.traced), rows=rows)
    return compared(given, sizes, given.retrace, f"in evaluation with {rows} row{'s' * (rows != 1)}")


def compared(given: Given, sizes: BatchSizes, trace: Retrace, how: str) -> Compared:
    """Another trace, of a batch of these sizes, against the planned graph, rescaled."""
    planned = planned_sizes(given.traced)
    try:
        found = trace(with_sizes(given.inputs, planned, sizes))
    except Exception as error:  # whatever it is, training goes on without: it is told where other sizes are asked for
        return Compared(said(error), refused=True)
    try:
        scaled = rescale(given.traced, batch=sizes.rows, seq=sizes.tokens or None, compared=True)
        different = difference(scaled, found, training=trace is given.retrain)
    except Exception as error:
        return Compared(said(error))
    return Compared(different and f"its graph {how} differs: {different}")


def said(error: Exception) -> str:
    return f"{error}" if isinstance(error, AutoplanError) else f"{type(error).__name__}: {error}"


def with_rows(inputs: Inputs, was: int, rows: int) -> Inputs:
    """The batch with other rows, without values."""
    return with_sizes(inputs, BatchSizes(was), BatchSizes(rows))


def with_sizes(inputs: Inputs, was: BatchSizes, sizes: BatchSizes) -> Inputs:
    """The batch with other rows, and other tokens where they are given, without values."""

    def other(value: torch.Tensor) -> torch.Tensor:
        shape = list(value.shape)
        if shape[:1] == [was.rows]:
            shape[0] = sizes.rows
        if was.tokens and shape[1:2] == [was.tokens]:
            shape[1] = sizes.tokens
        return torch.empty(shape, dtype=value.dtype, device="meta")

    if isinstance(inputs, Mapping):
        return {name: other(value) for name, value in inputs.items()}
    return tuple(map(other, inputs))
