"""Finds what repeats among the children of lists, so that two repeats are traced instead of eighty.

Two children are of one kind when they hold the same modules with the same parameters, buffers and settings; an
attribute that is just the child's position says nothing. Whether the traced repeats really are alike is checked
afterwards, on the graph.
"""

import functools
import inspect
from collections.abc import Iterator, Sequence

from torch import nn

from autoplan.trace.blocks import Run
from autoplan.trace.repeats.copying import KeptChildren
from autoplan.trace.repeats.per_child import lists_of, plain, rearranged, settings_by_child
from autoplan.trace.repeats.positions import tells_apart

LONGEST_PERIOD = 8
TRACED = 2  # repeats that are traced of each run: two, so that one can be checked against the other
PRIVATE = frozenset({"_parameters", "_buffers", "_modules"})


def find_runs(model: nn.Module) -> tuple[Run, ...]:
    """Runs of at least three repeats, in lists that lie in no other run, and whose holder treats all children alike."""
    found: list[Run] = []
    for path in lists_of(model):
        inside = any(path.startswith(f"{run.path}." if run.path else "") for run in found)
        holder, _, name = path.rpartition(".")
        known = {setting for _, setting in settings_by_child(model, path)}
        if not inside and not (path and tells_apart(model.get_submodule(holder), name, known)):
            kinds = kinds_of(model, path)
            found += [Run(path, *run) for run in runs(kinds) if run[2] > TRACED]
    return tuple(found)


def runs(kinds: Sequence[object]) -> Iterator[tuple[int, int, int]]:
    """(start, period, count) of each stretch that repeats, from the left; of several periods the one that leaves the
    most out, and of those the shortest."""
    at = 0
    while at < len(kinds):
        counts = [(repeats_of(kinds, at, period), period) for period in range(1, LONGEST_PERIOD + 1)]
        count, period = max(counts, key=lambda found: ((found[0] - TRACED) * found[1], -found[1]))
        if count > TRACED:
            yield at, period, count
        at += period * count if count > TRACED else 1


def repeats_of(kinds: Sequence[object], start: int, period: int) -> int:
    """How often the first ``period`` kinds stand in a row."""
    count = 1
    while kinds[start : start + period] == kinds[start + period * count : start + period * (count + 1)]:
        count += 1
    return count if start + period <= len(kinds) else 0


def kept_children(model: nn.Module, found: Sequence[Run]) -> tuple[KeptChildren, ...]:
    """What the copy holds of each list that has runs: two repeats of each, and all that doesn't repeat.

    Nothing is left out where what forward reads by a child's place can't be told to the copy.
    """
    kept = []
    for path in dict.fromkeys(run.path for run in found):
        dropped = {
            index
            for run in found
            if run.path == path
            for index in range(run.start + TRACED * run.period, run.start + run.count * run.period)
        }
        children = range(len(list(model.get_submodule(path).children())))
        kept.append(KeptChildren(path, tuple(index for index in children if index not in dropped)))
    told = rearranged(model, {k.path: k.children for k in kept})
    return tuple(kept) if told is not None else ()


def kinds_of(model: nn.Module, path: str) -> list[tuple]:
    """The kind of each child of a list."""
    children = list(model.get_submodule(path).children())
    held = [vars(owner)[name] for owner, name in settings_by_child(model, path)]
    return [(kind_of(child, index), *(values[index] for values in held)) for index, child in enumerate(children)]


def kind_of(child: nn.Module, position: int) -> tuple:
    modules = child.named_modules()
    return tuple((name, type(module), tensors_of(module), settings_of(module, position)) for name, module in modules)


def tensors_of(module: nn.Module) -> tuple:
    own = (*module._parameters.items(), *module._buffers.items())
    return tuple((name, None if t is None else (tuple(t.shape), t.dtype, t.requires_grad)) for name, t in own)


def settings_of(module: nn.Module, position: int) -> tuple:
    """Attributes that forward may read. What can't be compared by value is compared by identity."""
    settings = []
    for key in sorted(vars(module)):
        value = vars(module)[key]
        if key in PRIVATE:
            continue
        index = isinstance(value, int) and not isinstance(value, bool) and value == position
        settings.append((key, "its position" if index and is_index(key) else comparable(value)))
    return tuple(settings)


def is_index(key: str) -> bool:
    return any(word in key for word in ("idx", "index", "layer", "position", "depth"))


def comparable(value: object) -> object:
    if plain(value):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(comparable, value))
    if isinstance(value, (dict, set)) and all(map(plain, value)):
        return (type(value), tuple(map(comparable, value.values() if isinstance(value, dict) else sorted(value))))
    if isinstance(value, functools.partial):
        return (id(value.func), comparable(value.args), comparable(tuple(sorted(value.keywords.items()))))
    if inspect.ismethod(value):  # of the module itself, or of something that it holds
        return (id(value.__func__), type(value.__self__))
    return id(value)
