"""Calls in words, for reports: what a rank issues, where, and with whom."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.rehearsal.records import Call


def described(call: Call, rank: int) -> str:
    """ "all-reduce sum of 4.2 MB bf16", "send of 4.2 MB bf16 to rank 9", as this rank issues it."""
    towards = {"send": f" to rank {rank + call.peer}", "receive": f" from rank {rank + call.peer}"}.get(call.kind, "")
    name = call.name if call.kind == "collective" else call.kind
    return f"{name} of {_size(call.bytes)} {call.dtype}{towards}"


def ordinal(number: int) -> str:
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


def told(call: Call, rank: int) -> str:
    return f"{described(call, rank)} at {placed(call)}"


def placed(call: Call) -> str:
    return f"{call.line} ({call.during})" if call.during else call.line


def _size(number: int) -> str:
    return f"{number / 1e6:.4g} MB" if number >= 1e6 else f"{number:,} bytes"


def listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]}, {ranks[1]}, …, {ranks[-1]}"
