"""What is to be written instead of another library's name exists here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

import pytest

from autoplan.arguments.synonyms import (
    CLUSTER_NAMES,
    OF_PARALLELISM,
    OF_TRAINING,
    PARALLELISM_NAMES,
    SCHEDULE_NAMES,
    TRAINING_NAMES,
)
from autoplan.cluster import ClusterSpec
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Parallelism, Training

TABLES = [
    (Training, TRAINING_NAMES), (Parallelism, PARALLELISM_NAMES), (LRSchedule, SCHEDULE_NAMES),
    (ClusterSpec, CLUSTER_NAMES),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "names"), TABLES, ids=lambda each: getattr(each, "__name__", ""))
def test_each_names_a_field_and_is_none_itself(kind: type, names: Mapping[str, str]) -> None:
    known = {field.name for field in fields(kind)}
    assert not known & set(names)
    for name, instead in names.items():
        assert name == name.lower()
        first = re.split(r"\W", instead)[0]
        assert first in known or first in ("Parallelism", "Training", "example_inputs", "model"), f"{name}: {instead}"


def test_a_value_that_is_told_can_be_given() -> None:
    for instead in PARALLELISM_NAMES.values():
        found = re.fullmatch(r"(\w+)='?([\w-]+)'?", instead)
        if found and found[2] != "N":
            Parallelism(**{found[1]: int(found[2]) if found[2].isdigit() else found[2]})  # type: ignore[arg-type]


def test_the_options_of_each_are_told_where_they_are_asked_of_another() -> None:
    assert {field.name for field in fields(Training)} == set(OF_TRAINING)
    assert {field.name for field in fields(Parallelism)} == set(OF_PARALLELISM)
