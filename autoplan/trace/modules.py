"""What cutting and naming need to know of the user's modules."""

from collections import Counter

from torch import nn

from autoplan.trace.blocks import Tree
from autoplan.trace.repeats.finding import kinds_of, lists_of


def aliases_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each tied parameter's first name, its further ones."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: tuple(rest) for first, *rest in names.values() if rest}


def tree_of(model: nn.Module) -> Tree:
    modules = dict(model.named_modules())
    lists = lists_of(model)
    owned: dict[str, set[str]] = {path: set() for path in modules}
    for name, _ in model.named_parameters():
        parts = name.split(".")
        for depth in range(len(parts)):
            owned.get(".".join(parts[:depth]), set()).add(name)
    return Tree(
        classes={path: type(module).__name__ for path, module in modules.items()},
        builtin=frozenset(path for path, module in modules.items() if type(module).__module__.startswith("torch.")),
        lists=lists,
        repeating=frozenset(path for path in lists if repeats(model, path)),
        owned={path: frozenset(names) for path, names in owned.items()},
    )


def repeats(model: nn.Module, path: str) -> bool:
    """Whether two children that hold parameters are of one kind."""
    children = model.get_submodule(path).children()
    holds = [any(True for _ in child.parameters()) for child in children]
    kinds = Counter(kind for kind, has in zip(kinds_of(model, path), holds, strict=True) if has)
    return any(count > 1 for count in kinds.values())
