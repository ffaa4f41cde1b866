"""Tokens sent to the ranks that have their experts, and what comes back: an all-to-all whose parts differ by step.

A token goes once to each rank that has any of its experts, with its indices and its scores; there they are computed,
multiplied by their scores and added up, so one row comes back. How many rows go where is counted, and the counts are
exchanged, before the rows are. Where experts have a capacity each rank sends each other as many rows as that admits
(``autoplan.rules.nn.expert_capacity.rows_sent``): nothing is counted, and the host waits for nothing. A row that no
token fills names no expert, and comes back as zeros.

    experts of rank m: those from m·E/n on        token t goes to m  <=>  some index[t, j] is one of them

A token, its scores and its indices are one message: what isn't of the tokens' dtype crosses as its bits, and is read in
place where it arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from autoplan.runtime import host
from autoplan.runtime.collectives import raw

NOBODY = -1
"""The index of a choice that names no expert, whichever rank reads it."""
INDEX = {8: torch.float64, 4: torch.float32, 2: torch.int32}
"""The dtype in which indices cross, by the bytes of a token's element: numbers, where it counts beyond all experts."""


@dataclass(frozen=True)
class Peers:
    """An axis as a custom operator is told of it, in plain values.

    group   the name of the process group
    size    members; ``rank`` is this one's index
    places  ``MeshAxis.places``
    """

    group: str
    size: int
    rank: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class Journey:
    """Which of a rank's tokens go where, and how many come from where.

    tokens          the token of each row that is sent, by member and then in their order; -1 of one that is empty
    counts          [2, members, 2], the host's: of what goes and what comes the rows, and how many of their
                    choices name one of the receiver's experts; none where nothing is counted
    sent, received  rows to and from each member
    choices         of the rows that come here: how many name one of this rank's experts, or do at most
    """

    peers: Peers
    tokens: Tensor
    counts: list
    sent: list[int]
    received: list[int]
    choices: int

    @staticmethod
    def of(index: Tensor, experts: int, peers: Peers, rows: int = 0, chunks: int = 1) -> list[Journey]:
        """One for each of so many chunks of the tokens.

        index    [tokens, k]
        experts  of each rank
        rows     of a chunk that go to each, 0 where they are counted: counts of all chunks are exchanged then, at once,
                 and the host waits for the device
        """
        members = torch.arange(peers.size, device=index.device).view(-1, 1, 1)
        parts = [index] if chunks == 1 else index.tensor_split(chunks)
        names = [part // experts == members for part in parts]
        goes = [named.any(-1) for named in names]
        if rows:
            return [Journey.again(filled(part, rows), [], peers, rows) for part in goes]
        each = [torch.stack([one.sum(1), all.sum((1, 2))], 1) for one, all in zip(goes, names, strict=True)]
        sent, ones = each[0] if chunks == 1 else torch.cat(each, 1), [1] * peers.size
        both = torch.stack([sent, raw.all_to_all_rows(sent, ones, ones, peers.group, peers.places)])

        def otherwise() -> list:
            return [[[n for part in parts for n in expected(part, experts, peers.size)]] * peers.size] * 2

        read = host.read(both, otherwise)
        found = []
        for number, part in enumerate(goes):
            counts = [[row[2 * number : 2 * number + 2] for row in side] for side in read]
            there = sum(rows for rows, _ in counts[0])
            places = torch.nonzero_static(part, size=there)  # as many as were counted: no second wait
            # A GPU gives column after column, so a column is contiguous where it lies, at any offset. What a custom
            # operator returns has to begin at 16 bytes: inductor's code asserts it.
            tokens = places[:, 1].clone(memory_format=torch.contiguous_format)
            found.append(Journey.again(tokens, counts, peers))
        return found

    @staticmethod
    def again(tokens: Tensor, counts: list, peers: Peers, rows: int = 0) -> Journey:
        """A journey of which these were kept."""
        if rows:
            each = [rows] * peers.size
            return Journey(peers, tokens, counts, each, each, rows * peers.size)
        sent, received = ([rows for rows, _ in each] for each in counts)
        return Journey(peers, tokens, counts, sent, received, sum(choices for _, choices in counts[1]))

    @property
    def counted(self) -> bool:
        """Whether it is known how many rows and choices there are, not how many at most."""
        return bool(self.counts)

    @property
    def places(self) -> Tensor:
        """Of each row that is sent a token; of an empty one any."""
        return self.tokens if self.counted else self.tokens.clamp(min=0)

    def send(self, rows: Tensor) -> Callable[[], Tensor]:
        """Starts to send the rows of [tokens, width]; those that come here, in flight until they are asked for."""
        return partial(self.arrived, self.sets_out(rows))

    def send_all(self, scores: Tensor, index: Tensor, rows: Tensor) -> Callable[[], Tensor]:
        """Likewise of tokens, with their scores and indices, as one message (``Message``)."""
        return partial(self.arrived, self.all_set_out(scores, index, rows))

    def back(self, rows: Tensor) -> Callable[[], Tensor]:
        """Starts to send rows [rows that came here, width] to where their tokens are from: [rows sent, width]."""
        return partial(self.returned, self.goes_back(rows))

    def sets_out(self, rows: Tensor) -> Tensor:
        """What ``send`` has in flight, and ``arrived`` waits for."""
        return self.exchange(rows.index_select(0, self.places), self.sent, self.received)

    def all_set_out(self, scores: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        if self.counted:
            return self.sets_out(torch.cat(Message.parts(scores, index, rows), 1))
        scores, index, rows = (x.index_select(0, self.places) for x in (scores, index, rows))
        index = index.masked_fill((self.tokens < 0).unsqueeze(1), NOBODY)
        return self.exchange(torch.cat(Message.parts(scores, index, rows), 1), self.sent, self.received)

    def goes_back(self, rows: Tensor) -> Tensor:
        """What ``back`` has in flight, and ``returned`` waits for."""
        return self.exchange(rows, self.received, self.sent)

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return raw.fly(rows, sent, received, self.peers.group, self.peers.places)

    def arrived(self, flying: Tensor) -> Tensor:
        return raw.landed(flying, self.received, self.peers.places)

    def returned(self, flying: Tensor) -> Tensor:
        return raw.landed(flying, self.sent, self.peers.places)

    def added(self, rows: Tensor, total: Tensor) -> None:
        """Adds a token's rows that are back to zeros [tokens, width]: member by member, so that two runs give the same
        bits. So they are in one call, too, where a device adds in order, and of two summands in either."""
        places = self.places
        if rows.device.type == "cpu" or self.peers.size <= 2:
            total.index_add_(0, places, rows)
            return
        for part, place in zip(rows.split(self.sent), places.split(self.sent), strict=True):
            total.index_add_(0, place, part)


def filled(goes: Tensor, rows: int) -> Tensor:
    """goes [members, tokens] -> [members · rows] the tokens that go to each, in their order, and then -1."""
    members, tokens = goes.shape
    place = torch.where(goes, goes.cumsum(1) - 1, rows)
    found = torch.full((members, rows + 1), -1, dtype=torch.int64, device=goes.device)
    found.scatter_(1, place, torch.arange(tokens, device=goes.device).expand(members, -1))
    return found[:, :rows].reshape(-1)


def expected(index: Tensor, experts: int, members: int) -> tuple[int, int]:
    """Where values aren't known, rows to each member, and how many of their choices name its experts: every expert is
    as likely, and a token goes where any of its k experts is."""
    tokens, choices = index.shape
    elsewhere = math.comb(experts * (members - 1), choices) / math.comb(experts * members, choices)
    return round(tokens * (1 - elsewhere)), index.numel() // members


@dataclass(frozen=True)
class Message:
    """What crosses for each row: scores, indices, and rows of the tokens' dtype.

    scores, index  [rows, k]
    """

    scores: Tensor
    index: Tensor
    rows: Tensor

    @staticmethod
    def parts(scores: Tensor, index: Tensor, rows: Tensor) -> list[Tensor]:
        """All of the dtype of ``rows``, to be joined along their width; ``scores`` no narrower than that."""
        dtype = rows.dtype
        return [as_bits(scores, dtype), as_bits(index.to(INDEX[dtype.itemsize]), dtype), rows]

    @staticmethod
    def read(message: Tensor, choices: int, scores: torch.dtype) -> Message:
        """``scores``: their dtype."""
        kinds = scores, INDEX[message.dtype.itemsize]
        widths = [choices * kind.itemsize // message.dtype.itemsize for kind in kinds]
        first, second, rows = message.split([*widths, message.shape[1] - sum(widths)], 1)
        return Message(from_bits(first, kinds[0]), from_bits(second, kinds[1]).to(torch.int32), rows)


def as_bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, width] as elements of a dtype that is no wider."""
    return x if x.dtype == dtype else x.contiguous().view(dtype)


def from_bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What ``as_bits`` made, in place where each row begins where its dtype may."""
    if x.dtype == dtype:
        return x
    ratio = dtype.itemsize // x.dtype.itemsize
    begins = x.stride(0) % ratio == 0 and x.storage_offset() % ratio == 0
    return (x if begins else x.clone(memory_format=torch.contiguous_format)).view(dtype)
