"""Where training starts from, as a plan keeps it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

FACTORY = "factory"  # the recipe is of a function that makes the model
CONSTRUCTOR = "constructor"  # of the class of a transformers model, with its configuration
RESETS = "reset_parameters"  # of each submodule's reset_parameters, which need not be what its author does
FOLDER = "weights"  # where an exported plan's values lie


@dataclass(frozen=True)
class StoredFile:
    """One file of the values beside a plan."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Start:
    """Where training starts from.

    name      what makes the model, as people call it: "make_model()", "Model(config)"
    recipe    what the plan's InitRecipe repeats: FACTORY, CONSTRUCTOR or RESETS; "" where there is none
    compared  whether that was compared, bit for bit, with what is made on one device
    stored    whether the plan comes with values, from which training starts where no seed is given
    seed      under which those values were made; None where they are the user's own
    unknown   parameters and buffers that the program reads and of which nothing is known
    why       why there is no recipe, or why it wasn't compared; "" where there is nothing to say
    files     the stored values of a plan that was exported
    folder    where they lie, if not beside the plan: what save_pretrained wrote may be too large to copy
    """

    name: str = ""
    recipe: str = ""
    compared: bool = False
    stored: bool = False
    seed: int | None = None
    unknown: tuple[str, ...] = ()
    why: str = ""
    files: tuple[StoredFile, ...] = ()
    folder: str = ""

    @property
    def repeats(self) -> bool:
        """Whether the model can be made again under any seed, as on one device."""
        return self.recipe in (FACTORY, CONSTRUCTOR) and not self.unknown

    def among(self, names: Collection[str]) -> Start:
        """The same where only these names are read."""
        return replace(self, unknown=tuple(name for name in self.unknown if name in names))
