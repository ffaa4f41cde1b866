"""How a model's parameters come about: the operators that its constructor runs on them, in order."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.graph import Argument

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
