"""The one error of this package: a profile that can't be read, or that lacks a figure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class ProfileError(ValueError):
    """A device or link whose figures aren't known. Never answered with another device's figures.

    value   what was met, as the user wrote it
    cause   why it can't be used
    remedy  what to do instead
    """

    def __init__(self, value: object, cause: str, remedy: str) -> None:
        self.value, self.cause, self.remedy = str(value), cause.rstrip("."), remedy.rstrip(".")
        super().__init__(f"{self.value}: {self.cause}. {self.remedy}.")

    def __reduce__(self) -> tuple:
        return type(self), (self.value, self.cause, self.remedy)


def nearest(name: str, known: Sequence[str]) -> str:
    """What a name may stand for, as the end of an error's cause: the names that it begins, else those spelled like it;
    nothing where there are none."""
    near = [each for each in known if name and each.startswith(name.lower())]
    near = near or difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.4)
    return f"; nearest: {' or '.join(near)}" if near else ""
