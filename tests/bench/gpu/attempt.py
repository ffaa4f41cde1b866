"""One of many measurements: where it breaks off, the others go on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def attempted(act: Callable[[], T], name: str, wrong: list[str]) -> T | None:
    """What it gives; None where it raises, which ``wrong`` then tells and stderr in full."""
    try:
        return act()
    except Exception as error:
        print(f"{name} broke off:", file=sys.stderr)
        traceback.print_exc()
        wrong.append(f"{name} broke off: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}")
        return None


def last_error(text: str) -> str:
    """Of what a process wrote to stderr, the line that names its error."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "autoplan: error" in line]
    own = [line for line in lines if "ChildFailedError" not in line]
    return (own or lines or ["no word"])[0][-200:]
