"""Watches forward, and puts one operator in the place of a loop over experts.

What follows from which tokens an expert got is computed beside the graph, on as many rows as the mask has places. It
may enter the graph only where a loop adds it up: there it is read as what one expert adds. When the sum is read, the
operator of all of them is added to it. Whatever else enters is refused with the model's line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode

from autoplan.errors import TraceError
from autoplan.trace.expert_loops.expert_index import (
    CHOOSING,
    Selection,
    asked_of,
    expert_of,
    is_above_zero,
    near,
    possible,
)
from autoplan.trace.expert_loops.expert_parts import ADDED
from autoplan.trace.expert_loops.forward_calls import (
    CASTS,
    MULTIPLIED,
    PLAIN,
    SHAPED,
    TURNED,
    Call,
    Unlike,
    calls_in,
    leaves,
    mapped,
    name_of,
    plain,
    writes,
)
from autoplan.trace.expert_loops.loop_numbers import Count, Expert, Hit, Share, refused
from autoplan.trace.expert_loops.read_mixture import have_weights_apart, named_by, sources_of, sums_of
from autoplan.trace.expert_loops.sorted_choices import (
    JOINED,
    MAKING,
    PART,
    Place,
    cut_by,
    joined,
    place_of,
    put_back,
    share_of,
)

WATCHED = (
    CHOOSING | CASTS | PLAIN | SHAPED | TURNED | MULTIPLIED | {"one_hot", "sum", "greater", "gt", "ne", "eq", "any"}
    | MAKING | {"getitem", "unflatten"}
)  # fmt: skip
"""Calls that are remembered wherever they stand: masks are made of them, and experts' weights taken by them."""
CUT = frozenset({"split", "split_with_sizes", "tensor_split"})
RESHAPING = SHAPED | {"expand", "unflatten"}
SIZES = frozenset({"shape", "size", "numel", "nelement", "len"})
NO_TOKENS = (
    "a loop over the experts that tokens chose is one mixture: an expert that none chose gets a gradient of zero in "
    "that step, where the loop leaves it without one; so weight decay and momentum change it, too"
)
BY_TOKENS = "a branch by whether an expert has tokens does something else than add what the expert computes"
BY_HITS = "a loop over the experts that were hit does something else than add what they compute"


class ExpertLoops(TorchFunctionMode):
    """Within it, a loop over the experts that were hit is one ``autoplan::experts``.

    noted      gets what that changes, for the report
    followed   gets what forward may do something by: (whose mask, expert), and the error where it does anything else
               than add (``without_tokens``)
    tokens     whether experts are taken to have any where sums are left out; None: they have, and sums are made
    """

    def __init__(
        self, noted: MutableMapping[str, None], followed: MutableMapping[tuple, TraceError], tokens: bool | None
    ) -> None:
        super().__init__()
        self.noted, self.followed, self.tokens = noted, followed, tokens
        self.latest: int | None = None  # the expert that forward asked about last
        self.made: dict[int, Call] = {}
        self.added: dict[int, list[tuple[Any, Call]]] = {}  # to a sum, by its storage: what, and at which places
        self.sums: dict[int, Tensor] = {}
        self.left: set[int] = set()  # sums that others went on from
        self.masked: set[int] = set()  # how many places masks have
        self.ended: list[bool] = []  # whether each loop over the experts that were hit came to its end
        self.asked: dict[object, TraceError] = {}  # experts' masks of branches, and the error where no expert adds
        self.hit_by: dict[object, tuple[Tensor, ...]] = {}  # the places of each that are read, by it
        self.trains = torch.is_grad_enabled()

    def __torch_function__(
        self, func: Callable, types: Collection[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = name_of(func)
        asked = asked_of(self.known(args[0])) if getattr(func, "__name__", "") in ("__bool__", "item") else None
        if asked is not None:
            return self.answered(*asked)
        if name == "item" and (share := share_of(self.known(args[0]))) is not None:
            return share
        if name in CUT and any(isinstance(one, Share) for one in leaves((args[1:], kwargs))):
            return self.cut(func, *args, **kwargs)
        if name in ("getitem", "setitem") and self.asked:
            args = (args[0], self.by_places(args[1]), *args[2:])
        counts = [one for one in leaves((args, kwargs)) if isinstance(one, Count)]
        if counts and name not in RESHAPING:
            counts[0].unknown()
        given = mapped(args, self.known)
        chosen = any(call.chosen for call in calls_in((given, kwargs and mapped(kwargs, self.known))))
        if chosen:
            return self.following(func, name, args, given, kwargs)
        if self.added and name != "get" and name not in SIZES:
            self.finish([one for one in leaves((args, kwargs)) if isinstance(one, Tensor)])
        if name in ("nonzero", "argwhere") and not kwargs.get("as_tuple"):
            mask = args[0]
            if mask.ndim == 1 and near(given[0], frozenset({"one_hot"})):
                if not is_above_zero(given[0]):
                    raise refused("experts are chosen by how many tokens they got, which follows from values")
                self.followed[None, len(self.followed)] = refused(BY_HITS)
                return Hit(0 if self.tokens is False else possible(given[0], mask.shape[0]), self.ended)
        if (name == "where" and len(args) == 1) or (name == "nonzero" and kwargs.get("as_tuple")):
            expert = expert_of(given[0])
            if expert is not None:
                return self.places(func, given[0], expert)
        if name in CUT and any(isinstance(one, torch.SymInt) for one in leaves((args[1:], kwargs))):
            raise refused("rows are cut into parts whose sizes follow from values, as experts' counts do")
        if name == "getitem":
            args = (args[0], mapped(args[1], slice_of))
        result = func(*args, **kwargs)
        if name in WATCHED:
            self.remember(name, func, given, kwargs, result)
        return result

    def counted(self, size: int, of: Call) -> int:
        """A size of what follows from a choice; a multiple of a mask's places may be how many tokens an expert got."""
        if not any(size % places == 0 for places in self.masked):
            return size
        return Count(size, lambda: self.has_tokens(selection_of(of)))

    def has_tokens(self, selection: Selection) -> bool:
        """Whether an expert has, which forward asks."""
        self.latest = selection.expert
        if all(self.ended):
            self.followed.setdefault(named(selection), refused(BY_TOKENS))
        return self.tokens is not False

    def known(self, value: Any) -> Any:
        return self.made.get(id(value), value) if isinstance(value, Tensor) else value

    def remember(
        self, name: str, func: Callable, args: tuple, kwargs: Mapping[str, Any], result: Any, chosen: bool = False
    ) -> None:
        call = Call(name, func, args, mapped(dict(kwargs), self.known), result, chosen)
        several = result if isinstance(result, (tuple, list)) else ()
        for place, one in enumerate(several):
            if isinstance(one, Tensor):
                self.made[id(one)] = Call("part", part, (call, place), {}, one, chosen)
        if isinstance(result, Tensor):
            self.made[id(result)] = call

    def places(self, func: Callable, mask: Call, expert: int) -> tuple[Tensor, ...]:
        selection = Selection(mask, expert)
        self.masked.add(mask.tensor.numel())
        with disable_proxy_modes_tracing():
            found = tuple(mask.tensor.new_empty(mask.tensor.numel(), dtype=torch.int64) for _ in mask.tensor.shape)
        for dim, place in enumerate(found):
            self.made[id(place)] = Call("place", func, (selection, dim), {}, place, chosen=True)
        return found

    def answered(self, mask: Call, answer: bool) -> bool:
        """Whether an expert got tokens, of which all are taken to: one without adds nothing.

        answer  where it did
        """
        expert = expert_of(mask)
        assert expert is not None
        selection = Selection(mask, expert)
        self.asked.setdefault(named(selection), refused(BY_TOKENS))
        return answer == self.has_tokens(selection)

    def by_places(self, index: Any) -> Any:
        """An index in which masks of experts that were asked about are the places where they are true."""
        several = list(index) if isinstance(index, tuple) else [index]
        found: list[Any] = []
        for one in several:
            mask = self.known(one)
            expert = expert_of(mask) if isinstance(mask, Call) and mask.tensor.dtype == torch.bool else None
            key = None if expert is None else named(Selection(mask, expert))
            if expert is None or key not in self.asked:
                found.append(one)
                continue
            if key not in self.hit_by:
                self.hit_by[key] = self.places(torch.where, mask, expert)
            found += self.hit_by[key]
        return tuple(found) if isinstance(index, tuple) or len(found) > 1 else found[0]

    def following(self, func: Callable, name: str, args: tuple, given: tuple, kwargs: dict) -> Any:
        """A call of what follows from which tokens an expert got."""
        if name in SIZES and given[0].chosen:
            if name == "len":
                raise refused("len of an expert's tokens follows from values; .numel() may be compared with 0")
            sizes = func(*args, **kwargs)
            if isinstance(sizes, torch.Size):
                return tuple(self.counted(size, given[0]) for size in sizes)
            return self.counted(sizes, given[0])
        if name == "index_add" and not getattr(given[0], "chosen", False):
            whole = given + tuple(kwargs.get(k) for k in ("dim", "index", "source")[len(given) - 1 :])
            if whole[1] == 0 and kwargs.get("alpha", 1) == 1:
                place, rows = place_of(mapped(whole[2], self.known)), mapped(whole[3], self.known)
                if place is not None:
                    return self.put_back(func, args[0], place, rows)
                total = args[0] if writes(func) else self.continued(args[0])
                return self.add(total, mapped(whole[2], self.known), mapped(whole[3], self.known))
        if name == "setitem":
            place, value = given[1], given[2]
            if isinstance(value, Call) and value.name in ADDED:
                before = value.args[0]
                if isinstance(before, Call) and before.name == "getitem" and self.same(before.args[0], args[0]):
                    return self.add(args[0], place, value.args[1])
            raise refused("what an expert computed is written over what other experts gave: it has to be added")
        if writes(func) and not getattr(given[0], "chosen", False):
            raise refused(f"{name} writes what one expert computed into a tensor of all tokens")
        if self.added and name != "getitem":
            self.finish([one for one in leaves((args, kwargs)) if isinstance(one, Tensor)])
        with disable_proxy_modes_tracing():
            result = func(*args, **kwargs)
        floats = [one for one in leaves(result) if isinstance(one, Tensor) and one.is_floating_point()]
        if floats and torch.is_grad_enabled() != self.trains:
            raise refused("an expert computes under another gradient mode than the rest of the model")
        together = joined(given[0]) if name == "cat" and (*given[1:], *kwargs.values()) in ((), (0,)) else None
        if together is not None:
            name, given, kwargs = JOINED, together, {}
        self.remember(name, func, given, kwargs, result, chosen=True)
        return result

    def cut(self, func: Callable, rows: Tensor, sizes: Any = None, dim: int = 0, **named: Any) -> tuple[Tensor, ...]:
        """Each expert's part of rows that were sorted by experts."""
        sizes = next(iter(named.values())) if sizes is None else sizes
        if cut_by(sizes, dim, self.known(rows)) is None:
            raise refused("rows are cut by how many tokens each expert got, and aren't sorted by the experts")
        with disable_proxy_modes_tracing():
            parts = rows.tensor_split(len(sizes))
        for expert, part in enumerate(parts):
            self.made[id(part)] = Call(PART, func, (self.known(rows), expert, len(sizes)), {}, part, chosen=True)
        return parts

    def put_back(self, func: Callable, total: Tensor, place: Place, rows: Any) -> Tensor:
        """A sum with what experts of sorted rows add to it."""
        if self.tokens is not None:
            return total
        self.finish([total])
        try:
            found = put_back(place, rows).to(total.dtype)
        except Unlike as error:
            raise refused(f"experts whose rows were sorted aren't read: {error}") from None
        return total.add_(found) if writes(func) else total + found

    def continued(self, total: Tensor) -> Tensor:
        """A sum that goes on from another: what was added to that is added to it, too."""
        if self.tokens is not None:
            return total
        new = total.clone()
        if storage_of(total) in self.added:
            self.added[storage_of(new)] = list(self.added[storage_of(total)])
            self.left.add(storage_of(total))
        return new

    def same(self, one: Any, other: Tensor) -> bool:
        return (one.tensor if isinstance(one, Call) else one) is other

    def add(self, total: Tensor, place: Any, rows: Any) -> Tensor:
        place = place[0] if isinstance(place, tuple) and len(place) == 1 else place
        if not isinstance(place, Call) or place.name != "place":
            raise refused("what an expert computed is added elsewhere than at the places that torch.where gave")
        if self.latest not in (None, place.args[0].expert):
            raise refused(BY_TOKENS)
        if self.tokens is not None:
            return total
        key = storage_of(total)
        self.sums.setdefault(key, total)
        self.added.setdefault(key, []).append((rows, place))
        return total

    def finish(self, read: list[Tensor]) -> None:
        """Adds up what was added to a sum that is read."""
        for key in dict.fromkeys(map(storage_of, read)):
            if key in self.added:
                total, added, self.latest = self.sums.pop(key), self.added.pop(key), None
                try:
                    if any(storage_of(one) == key for one in sources_of(added)):
                        raise Unlike("an expert reads what others have added to the sum by then")
                    found = sums_of(added)
                except Unlike as error:
                    raise refused(f"a loop over experts isn't read as a sum of them: {error}") from None
                for _, place in added:
                    self.asked.pop(named(place.args[0]), None)
                if have_weights_apart(added):
                    self.noted[NO_TOKENS] = None
                total.add_(found.reshape(total.shape).to(total.dtype))

    def end(self, result: Any) -> None:
        """What forward gives is in the graph; TraceError where it follows from which tokens an expert got."""
        self.finish([total for key, total in self.sums.items() if key not in self.left])
        if self.asked and self.tokens is None:
            raise next(iter(self.asked.values()))
        if not all(self.ended):
            raise refused("a loop over the experts that were hit ends before the last of them")
        if any(getattr(self.known(one), "chosen", False) for one in leaves(plain(result)) if isinstance(one, Tensor)):
            raise refused("forward's result follows from which tokens an expert got")


def selection_of(value: Call) -> Selection:
    """Of which expert's tokens a value follows."""
    todo, met = [value], set()
    while todo:
        call = todo.pop()
        if call.name == "place":
            return call.args[0]
        if id(call) not in met:
            met.add(id(call))
            todo += [one for one in calls_in((call.args, call.kwargs)) if one.chosen]
    raise AssertionError("what follows from a choice follows from a mask's places")


def named(selection: Selection) -> tuple[object, int]:
    """Equal for masks of the same expert by the same choices."""
    return named_by(selection), selection.expert


def part(several: Any, place: int) -> Any:
    return several[place]


def slice_of(index: Any) -> Any:
    """An entry of what nonzero gives is a tensor of one index, so it keeps the dim."""
    if not isinstance(index, Expert):
        return index
    return slice(int(index), int(index) + 1) if index.listed else int(index)


def storage_of(tensor: Tensor) -> int:
    return id(tensor.untyped_storage())


