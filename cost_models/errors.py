"""The one error of this package: a profile that can't be read, or that lacks a figure."""

from __future__ import annotations


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
