"""Names that program.py can have, whatever a user's modules and arguments are called."""

import builtins
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from autoplan.emit.random_arguments import FIRST
from autoplan.emit.source import attribute_names, identifier
from autoplan.ir.graph import free_name
from autoplan.ir.typed_program import Lowered
from autoplan.runtime.parallel.seeding import DRAWN_OVER

MODULE_LEVEL = frozenset({"STAGES", "counts", "Extension", "require"}) | frozenset(dir(builtins))
REST = "unused"  # the keywords of a function that it doesn't name


def with_class_names(lowered: Lowered, reserved: frozenset[str]) -> Lowered:
    """The program with blocks of distinct names, each one that a class of program.py can have.

    reserved  names that it imports
    A module of the user's may be called F, Stage0 or 3x3: such a block is BlockF.
    """
    taken = set(reserved | MODULE_LEVEL) | {stage_class(number) for number in range(len(lowered.stages))}
    blocks = []
    for block in lowered.blocks:
        fits = block.name.isidentifier() and not keyword.iskeyword(block.name)
        name = block.name if fits else f"Block{identifier(block.name).strip('_')}"
        blocks.append(replace(block, name=name if name not in taken else free_name(f"Block{name}", taken, first=2)))
        taken.add(blocks[-1].name)
    return replace(lowered, blocks=tuple(blocks))


def stage_class(number: int) -> str:
    """The class of the stages like this one."""
    return f"Stage{number}"


def module_attributes(names: Sequence[str], axes: Iterable[str]) -> dict[str, str]:
    """``attribute_names``, none of them one that a module has already.

    axes  attributes that hold axes, "self.tp"
    """
    taken = {axis.removeprefix("self.") for axis in axes} | {FIRST, DRAWN_OVER}
    chosen: dict[str, str] = {}
    for name, short in attribute_names(tuple(names)).items():
        held = hasattr(nn.Module, short) or short in taken
        chosen[name] = free_name(f"{short}_", taken, first=2) if held else short
        taken.add(chosen[name])
    return chosen


def keyword_arguments(names: Sequence[str], words: Mapping[str, str], indent: int) -> tuple[list[str], list[str]]:
    """The keywords that a function takes by their own names, and the lines that read the others.

    names  what the function is given
    words  the local variables that they are: another name where their own hides what the function calls
    """
    own = [name for name in names if words[name] == name]
    others = [name for name in names if words[name] != name]
    return own, [" " * indent + f'{words[name]} = {REST}["{name}"]' for name in others]
