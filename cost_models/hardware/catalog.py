"""What a profile or a fabric says, figure by figure, with where each comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.errors import ProfileError, nearest
from cost_models.figures import Figures
from cost_models.hardware.link import FABRICS, fabric_names
from cost_models.hardware.profile import PROFILES, device_names


@dataclass(frozen=True)
class Sourced:
    """One figure, or a name that stands where figures do (a machine's fabrics; then without unit, source and date).

    place  "memory.capacity"
    value  as the file writes it
    """

    place: str
    value: str
    unit: str = ""
    source: str = ""
    date: str = ""


def figures_of(name: str | os.PathLike[str]) -> tuple[Sourced, ...]:
    """The figures of a shipped device or fabric by its name, or of a file by its path, ending in .toml.

    A ``ProfileError`` for a name that is neither, or a file that isn't TOML.
    """
    text = os.fspath(name)
    if text.endswith(".toml"):
        path = Path(text)
    elif text in device_names():
        path = PROFILES / f"{text}.toml"
    elif text in fabric_names():
        path = FABRICS / f"{text}.toml"
    else:
        known = (*device_names(), *fabric_names())
        cause = f"is neither a known device nor a known fabric{nearest(text, known)}"
        raise ProfileError(text, cause, f"Known are {', '.join(known)}")
    return tuple(_leaves(Figures.read(path).tables, ""))


def _leaves(table: Mapping[str, Any], within: str) -> Iterator[Sourced]:
    for key, entry in table.items():
        if not isinstance(entry, dict):
            yield Sourced(within + key, str(entry))
        elif "value" in entry:
            told = (str(entry.get(name, "")) for name in ("value", "unit", "source", "date"))
            yield Sourced(within + key, *told)
        else:
            yield from _leaves(entry, f"{within}{key}.")
