"""What the command line's words say: trainings, parallelisms, bandwidths."""

from collections.abc import Sequence
from dataclasses import fields

from autoplan.arguments.synonyms import TRAINING_NAMES
from autoplan.arguments.values import parse_settings
from autoplan.options import Parallelism, Training
from autoplan.search.space.systems import read


def training(settings: Sequence[str]) -> Training | None:
    """Training with the given fields; None where none are given, so that the cluster's own precision is taken."""
    defaults = {field.name: getattr(Training(), field.name) for field in fields(Training)}
    defaults["optimizer_options"] = None  # a mapping as Python writes it, not the pairs that it is kept as
    given = parse_settings(settings, defaults, "--training", TRAINING_NAMES)
    return Training(**given) if given else None  # type: ignore[arg-type]


def parallelism(text: str) -> str | Parallelism:
    """A named system's name, or a Parallelism of "dp=2,tp=2"."""
    return read(text, "--parallelism")
