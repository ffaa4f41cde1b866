"""docs/gpu.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.bench.gpu.result import Result

HEAD = """# On a GPU

`make gpu` writes this page, on one device; each part takes less than ten minutes. Models have 8 layers of width 2048,
16 heads of queries and 8 of keys and values, and 8 rows of 2,048 tokens; those of the first table are small.
"""


def document(measured_on: str, results: Sequence[Result], failed: Mapping[str, str]) -> str:
    """failed: parts that ended otherwise, with what they said."""
    missing = [f"## {name}\n\nDidn't end: {said}\n" for name, said in failed.items()]
    return "\n".join([HEAD, measured_on, *(result.section() for result in results), *missing])
