"""docs/gpu.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import torch

from tests.bench.gpu.result import Result

HEAD = """# On a GPU

`make gpu` writes this page, on one device; each part takes less than ten minutes.
"""


def document(device: str, results: Sequence[Result], failed: Mapping[str, str], today: date | None = None) -> str:
    """failed: parts that ended otherwise, with what they said."""
    when = f"Measured on {today or date.today():%Y-%m-%d} on one {device}, torch {torch.__version__}.\n"
    missing = [f"## {name}\n\nDidn't end: {said}\n" for name, said in failed.items()]
    return "\n".join([HEAD, when, *(result.section() for result in results), *missing])
