"""Attributes with an entry for each child of a list, such as a config's ``layer_types``.

Forward finds an entry by its child's place (``self.config.layer_types[i]``), so where a copy leaves children out, what
stands at the places of the others has to be theirs.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

PLAIN = (int, float, str, bool, type(None), torch.dtype)


def plain(value: object) -> bool:
    return isinstance(value, PLAIN)


def lists_of(model: nn.Module) -> tuple[str, ...]:
    """Paths of ModuleLists and Sequentials with several children, outermost first."""
    return tuple(
        path
        for path, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
    )


def settings_by_child(model: nn.Module, path: str) -> Iterator[tuple[object, str]]:
    """(what holds it, its name) for each such attribute of the module that holds list ``path`` and of the Hugging Face
    configs around it."""
    count = len(list(model.get_submodule(path).children()))
    for owner in owners(model, path):
        for name, value in vars(owner).items():
            if isinstance(value, (list, tuple)) and len(value) == count and all(map(plain, value)):
                yield owner, name


def owners(model: nn.Module, path: str) -> tuple[object, ...]:
    """The module that holds a list, and the configs of the modules that hold it, each once."""
    parts = path.split(".")[:-1] if path else []
    around = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]
    configs = [config for module in around if hasattr(config := getattr(module, "config", None), "to_dict")]
    return tuple({id(owner): owner for owner in (around[-1], *configs)}.values())


def rearranged(model: nn.Module, kept: Mapping[str, Sequence[int]]) -> dict[tuple[int, str], list] | None:
    """The entries for a copy that holds these children of these lists alone: by the holder's id and the attribute.

    None where there are no such ones: a child that is numbered anew would be read at another's place, or beside
    another's sibling (``zip(self.layers, self.norms)``).
    """
    found: dict[tuple[int, str], list] = {}
    beside: dict[tuple[str, int], tuple[int, ...]] = {}
    for path in lists_of(model):
        count = len(list(model.get_submodule(path).children()))
        children = tuple(kept.get(path, range(count)))
        if path and beside.setdefault((path.rpartition(".")[0], count), children) != children:
            return None
        for owner, name in settings_by_child(model, path):
            entries = at_both_places(vars(owner)[name], children)
            if entries is None or found.setdefault((id(owner), name), entries) != entries:
                return None
    return found


def at_both_places(entries: Sequence[object], children: Sequence[int]) -> list | None:
    """The entries with each child's at its place in the copy and at its own; None where two would stand at one."""
    moved = list(entries)
    for place, child in enumerate(children):
        moved[place] = entries[child]
    return moved if all(moved[child] == entries[child] for child in children) else None
