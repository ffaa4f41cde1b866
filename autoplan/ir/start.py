"""Where training starts from, as a plan keeps it: stored values, or the operators that draw them, in order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from autoplan.ir.graph import Argument

FACTORY = "factory"  # the recipe is of a function that makes the model
CONSTRUCTOR = "constructor"  # of the class of a transformers model, with its configuration
RESETS = "reset_parameters"  # of each submodule's reset_parameters, which need not be what its author does
FOLDER = "weights"  # where an exported plan's values lie
LITERAL = "literal"  # makes a tensor of values that are written down: (values, shape, dtype)
TRUNCATED = "autoplan.trunc_normal_"  # torch.nn.init.trunc_normal_, which draws until every value lies inside
SEED, SAVE, RESTORE = "autoplan.seed", "autoplan.save_state", "autoplan.restore_state"  # of the generator
EMPTY = "aten.empty.memory_format"  # makes a tensor without values


@dataclass(frozen=True)
class Step:
    """One operator.

    op      "aten.normal_.default"; or LITERAL
    out     the tensor it makes; for one in place, the tensor it changes
    args, kwargs   tensors as Ref
    result  which of several results ``out`` is; -1 where the operator has one
    random  whether it draws random numbers, so that it has to run for those after it to draw the same
    shape, dtype   of ``out``
    """

    op: str
    out: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    random: bool
    shape: tuple[int, ...]
    dtype: str
    result: int = -1


@dataclass(frozen=True)
class View:
    """A view of another tensor; writing through it changes that one."""

    name: str
    source: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class InitRecipe:
    """What ``replay`` runs.

    tensors   (the user's name of a parameter or buffer, the tensor or view that it is)
    missing   parameters and buffers that no operator fills
    """

    steps: tuple[Step, ...]
    views: tuple[View, ...]
    tensors: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


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

    @property
    def unknown_text(self) -> str:
        """``wpe.weight, wte.weight, wq.weight and 2 more``."""
        if not self.unknown:
            return "the model"
        first, many = ", ".join(self.unknown[:3]), len(self.unknown)
        return f"{first} and {many - 3} more" if many > 3 else first

    def among(self, names: Collection[str]) -> Start:
        """The same where only these names are read."""
        return replace(self, unknown=tuple(name for name in self.unknown if name in names))
