"""Experts of which weights have each by itself, read as the two tensors in which a model has them all.

    <mixture>.experts.gate_up_proj  [experts, 2 f, h]   of each expert w1 [f, h] above w3 [f, h]
    <mixture>.experts.down_proj     [experts, h, f]     of each expert w2 [h, f]

So transformers holds them, while save_pretrained writes them, and the hub has them, one by one: under these names,
within "block_sparse_moe" for "mlp", or as gate_proj, up_proj and down_proj.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from autoplan.runtime.parallel.own_box import Part

EXPERT = re.compile(r"(?P<mixture>.+)\.experts\.(?P<number>\d+)\.(?P<what>\w+)\.weight")
ABOVE = (("gate_up_proj", ("w1", "w3")), ("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("w2",)),
         ("down_proj", ("down_proj",)))  # fmt: skip
RENAMED = (".block_sparse_moe.", ".mlp.")


class Weights(Protocol):
    """Whole tensors by the user's names, of which boxes can be read."""

    where: str

    def names(self) -> Iterable[str]:
        """Of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of them."""

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """A box of one into ``out``, which has the box's shape, in out's dtype and on its device."""


class StackedExperts:
    """The same weights; of experts, what they make together is there too, under a model's names."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.where = weights, weights.where
        known = {name.replace(*RENAMED): name for name in weights.names()}
        self.own = known | {name: name for name in weights.names()}
        self.stacks = dict(stacks(known))

    def names(self) -> Iterable[str]:
        return (*self.own, *self.stacks)

    def sources(self, name: str) -> tuple[str, ...]:
        """Of what the weights themselves have, what one of these names is made of."""
        if name in self.own:
            return (self.own[name],)
        return tuple(self.own[piece] for pieces in self.stacks[name] for piece in pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.own:
            return self.weights.shape(self.own[name])
        first = [self.shape(piece) for piece in self.stacks[name][0]]
        return len(self.stacks[name]), sum(rows for rows, _ in first), first[0][1]

    def read(self, name: str, part: Part, out: Tensor) -> None:
        if name in self.own:
            return self.weights.read(self.own[name], part, out)
        for i in range(part.shape[0]):
            self.read_expert(self.stacks[name][part.start[0] + i], Part(part.start[1:], part.shape[1:]), out[i])
        return None

    def read_expert(self, pieces: Sequence[str], part: Part, out: Tensor) -> None:
        """A box of pieces that lie above one another."""
        first, last = part.start[0], part.start[0] + part.shape[0]
        top = 0
        for piece in pieces:
            rows = self.shape(piece)[0]
            start, stop = max(first, top), min(last, top + rows)
            if start < stop:
                box = Part((start - top, part.start[1]), (stop - start, part.shape[1]))
                self.read(piece, box, out[start - first : stop - first])
            top += rows


def stacks(names: Iterable[str]) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
    """What experts make together, by name: of each expert, in order, the pieces that lie above one another."""
    found: dict[str, dict[int, set[str]]] = {}
    for match in filter(None, map(EXPERT.fullmatch, names)):
        found.setdefault(match["mixture"], {}).setdefault(int(match["number"]), set()).add(match["what"])
    for mixture, experts in found.items():
        for made, pieces in ABOVE:
            if sorted(experts) == list(range(len(experts))) and all(set(pieces) <= has for has in experts.values()):
                each = (tuple(f"{mixture}.experts.{e}.{piece}.weight" for piece in pieces) for e in range(len(experts)))
                yield f"{mixture}.experts.{made}", tuple(each)
