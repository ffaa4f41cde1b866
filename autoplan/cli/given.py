"""What the command line's words say: trainings, parallelisms, bandwidths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from autoplan.errors import InputsError
from autoplan.options import Parallelism, Training
from autoplan.values import parse_settings

# what the fields of Parallelism, all None by default, hold
FIELDS: Mapping[str, object] = {
    "dp": 1, "tp": 1, "pp": 1, "zero": 0, "micro_batch": 1, "schedule": "", "virtual_stages": 1, "recompute": "",
    "sequence_parallel": False, "offload": "", "tensor": "", "tensor_system": "",
}  # fmt: skip


def training(settings: Sequence[str]) -> Training | None:
    """Training with the given fields; None where none are given, so that the cluster's own precision is taken."""
    defaults = {field.name: getattr(Training(), field.name) for field in fields(Training)}
    defaults["optimizer_options"] = None  # a mapping as Python writes it, not the pairs that it is kept as
    given = parse_settings(settings, defaults, "--training")
    return Training(**given) if given else None  # type: ignore[arg-type]


def parallelism(text: str) -> str | Parallelism:
    """A named system's name, or a Parallelism of "dp=2,tp=2"."""
    if "=" not in text:
        return text
    settings = parse_settings(text.split(","), FIELDS, "--parallelism")
    if "tensor" in settings:
        settings["tensor"] = factors(str(settings["tensor"]))
    return Parallelism(**settings)  # type: ignore[arg-type]


def factors(text: str) -> tuple[int, ...]:
    """The factors of "2x4"; InputsError where it is none."""
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise InputsError(f"tensor={text}", "it is no product of sizes", "write for example tensor=2x4")
    return tuple(int(size) for size in text.split("x"))
