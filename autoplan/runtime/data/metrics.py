"""A file with a line of JSON for each optimizer step, each step once however often training was resumed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from autoplan.errors import InputsError


class MetricsFile:
    """Appends lines; those of steps that a resumed run takes again are left out first.

    path   None: nothing is written
    steps  optimizer steps taken when training begins here; later lines, and one that was cut off, go
    InputsError where the file can't be written, or holds anything else.
    """

    def __init__(self, path: Path | None, steps: int) -> None:
        self.path = path
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputsError(path, f"no metrics can be written to it: {error}", "give a file of its own") from None
        if not all(step_of(line) for line in lines[:-1]):
            raise InputsError(path, "it holds lines that aren't metrics", "give a file of its own")
        kept = "".join(f"{line}\n" for line in lines if 0 < step_of(line) <= steps)
        beside = path.with_name(f"{path.name}.tmp")
        beside.write_text(kept)
        os.replace(beside, path)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")


def step_of(line: str) -> int:
    """The step of a line; 0 of one that isn't whole."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return 0
    return int(found.get("step", 0)) if isinstance(found, dict) else 0
