"""Tables that are formulas: what the cost functions say must be what is printed there."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sympy

from cost_models.arithmetic import Number
from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.rows import Row
from tests.bench.closed_form.transformer.states import state_bytes
from tests.oracles.korthikanti import outer_activation_bytes, output_tensors_bytes, transformer_layer_activation_bytes

GIB = 2.0**30
UNIT = {"GB": 1e9, "GiB": 2.0**30, "M": 1e6, "B": 1e9, "T": 1e12}
AMOUNT = re.compile(r"([\d.]+)\s*([A-Za-z]+)$")
STAGES = {"P_os": 1, "P_os+g": 2, "P_os+g+p": 3}
SIZES: Mapping[str, int] = {"s": 2048, "b": 1, "h": 12288, "a": 96, "L": 96, "v": 51200, "t": 8, "p": 1}
"""Korthikanti et al.'s 175B, on which the formulas are evaluated (without a pipeline)."""


def _amount(row: Row, column: str) -> float:
    """ "3.57 GiB", "319.0M" or "82M" in its base unit."""
    found = AMOUNT.match(row[column])
    if found is None or found[2] not in UNIT:
        raise Unusable(f"{column}: {row[column]!r} isn't an amount with a unit")
    return float(found[1]) * UNIT[found[2]]


def zero_point(row: Row) -> Point:
    """Model states under mixed precision with Adam, by the ZeRO paper's account, whose GB are 10^9 bytes. Compared with
    the paper's own digits (cut off, not always rounded), not with the formula beside them."""
    elements = _amount(row, "model")
    zero, ranks = STAGES[row["stage"]], row.whole("DP_degree")
    predicted = state_bytes(elements, "fp16-mixed", "adam", zero, ranks).total_bytes / GIB
    label = f"{row['model']} {row['stage']} over {ranks}"
    printed = row.positive("GB_per_device_paper") * 1e9 / GIB
    return Point(row.number, label, row["stage"], "any", predicted, printed)


def rmsprop_point(row: Row) -> Point:
    """Parameters, gradients and RMSProp's state in float32, 12 bytes an element, of parameters as printed: rounded to
    one digit in the paper's last row. Activations of AmoebaNet aren't priced."""
    elements = _amount(row, "params")
    predicted = state_bytes(elements, "fp32", "rmsprop").total_bytes / GIB
    label, printed = f"{row['system']}: {row['experiment']}", _amount(row, "model_memory") / GIB
    return Point(row.number, label, row["system"], "any", predicted, printed)


def activation_formula_point(row: Row) -> Point:
    """The formulas evaluated for 175B, on 8 tensor ranks. Those of FLOPs aren't bytes; the first stage's is a sentence,
    held by a test."""
    name, sizes = row["configuration"], SIZES
    ours = {
        "no parallelism": _layer(),
        "tensor parallel t": _layer(tensor=sizes["t"]),
        "tensor + sequence parallel": _layer(tensor=sizes["t"], sequence_parallel=True),
        "tensor parallel + selective recompute": _layer(tensor=sizes["t"], recompute="selective"),
        "tensor + sequence parallel + selective recompute": _layer(
            tensor=sizes["t"], sequence_parallel=True, recompute="selective"
        ),
        "full recompute": _layer(recompute="full"),
        "embedding/logits extra": outer_activation_bytes(
            sizes["s"], sizes["b"], sizes["h"], sizes["v"], sizes["t"], sizes["p"]
        ),
    }
    if name.startswith("output-tensor deallocation"):
        return _deallocation_point(row)
    if name not in ours:
        raise Unusable("not a formula of bytes")
    theirs = float(formula(row["bytes_per_layer"]).subs({sympy.Symbol(key): size for key, size in sizes.items()}))
    return Point(row.number, name, "175B", "any", float(ours[name]) / GIB, theirs / GIB)


def _layer(**how: Number) -> Number:
    return transformer_layer_activation_bytes(SIZES["s"], SIZES["b"], SIZES["h"], SIZES["a"], **how)


def _deallocation_point(row: Row) -> Point:
    """Of 530B, with 35 stages, where the text states its figure (in 2^30 bytes)."""
    stated = re.search(r"= ([\d.]+) GB", row["bytes_per_layer"])
    if stated is None:
        raise Unusable("states no figure")
    predicted = float(output_tensors_bytes(2048, 1, 20480, 35)) / GIB
    return Point(row.number, row["configuration"], "530B", "any", predicted, float(stated[1]))


def formula(text: str) -> sympy.Expr:
    """A formula as the table writes it, in its own letters; "[p==1]" is 1, for a model without a pipeline. A
    ``ValueError`` for anything that isn't arithmetic of single letters, so that nothing else is evaluated."""
    plain = text.replace("[p==1]", "1")
    if not re.fullmatch(r"(?:[a-zA-Z](?![a-zA-Z])|\d+|[-+*/() ])+", plain):
        raise ValueError(f"{text!r} isn't arithmetic of single letters")
    return sympy.sympify(plain, locals={letter: sympy.Symbol(letter) for letter in re.findall("[a-zA-Z]", plain)})
