"""The numbers that a loop over experts goes by: which experts were hit, each of them, and how many tokens it got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from autoplan.errors import TraceError
from autoplan.trace.branches import asking_line

REMEDY = (
    "write each expert as products with an elementwise activation between them, times a score, and add it up: "
    "y.index_add_(0, token, down(act(up(x[token]))) * scores[token, choice, None])"
)


def refused(cause: str) -> TraceError:
    """The error at the model's own line."""
    line = asking_line()
    return TraceError(line[1] if line else "a loop over experts", cause, REMEDY)


class Expert(int):
    """An expert's number, as an entry of what ``nonzero`` gives.

    listed  whether it is a tensor of one entry, [1], there
    """

    listed = False

    def __new__(cls, number: int, listed: bool = False) -> Expert:
        made = super().__new__(cls, number)
        made.listed = listed
        return made

    def __getitem__(self, place: int) -> Expert:
        return Expert(self)

    def item(self) -> Expert:
        return Expert(self)

    squeeze = view = reshape = flatten = to = cpu = detach = long = lambda self, *_, **__: Expert(self)


class Hit:
    """The experts that were hit, for which all of them stand.

    count  of all
    ended  gets an entry for each loop that begins, which says whether it came to its end
    """

    def __init__(self, count: int, ended: list[bool], listed: bool = True) -> None:
        self.count, self.ended, self.listed = count, ended, listed

    def __iter__(self) -> Iterator[Expert]:
        place = len(self.ended)
        self.ended.append(False)
        yield from (Expert(number, self.listed) for number in range(self.count))
        self.ended[place] = True

    def __len__(self) -> NoReturn:
        raise refused("how many experts were hit follows from values; only a loop over them is read")

    def squeeze(self, *_: int) -> Hit:
        return Hit(self.count, self.ended, listed=False)

    view = reshape = flatten = squeeze

    def same(self, *_: object, **__: object) -> Hit:
        return self

    to = cpu = detach = long = tolist = same

    def __getattr__(self, name: str) -> NoReturn:
        raise refused(f"{name} of which experts were hit follows from values; only a loop over them is read")


class Count(int):
    """How many tokens an expert got: here as many as there are, so no number that anything may follow from.

    It may be compared with zero, and be a size of what is reshaped.

    above  says whether it is above zero
    """

    above: Callable[[], bool]

    def __new__(cls, size: int, above: Callable[[], bool]) -> Count:
        made = super().__new__(cls, size)
        made.above = above
        return made

    def unknown(self, *_: Any) -> NoReturn:
        raise refused("how many tokens an expert got enters what is computed, and follows from values")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __float__ = __int__ = unknown

    def above_zero(self, other: object, answer: bool) -> bool:
        if isinstance(other, int) and not isinstance(other, Count) and other == 0:
            return answer == self.above()
        return self.unknown()

    def __eq__(self, other: object) -> bool:
        return self.above_zero(other, False)

    def __ne__(self, other: object) -> bool:
        return self.above_zero(other, True)

    def __gt__(self, other: object) -> bool:
        return self.above_zero(other, True)

    def __bool__(self) -> bool:
        return self.above()

    __hash__ = int.__hash__
    __lt__ = __le__ = __eq__
    __ge__ = __gt__


class Share(Count):
    """How many choices name an expert, of a list with all of them: it may cut rows that were sorted by experts.

    index  of which tensor the choices are
    """

    index: Any
    expert: int

    def __new__(cls, index: Any, expert: int) -> Share:
        made = super().__new__(cls, 0, bool)
        assert isinstance(made, Share)
        made.index, made.expert = index, expert
        return made

    def above_zero(self, other: object, answer: bool) -> bool:
        return self.unknown()

    def __bool__(self) -> bool:
        return self.unknown()
