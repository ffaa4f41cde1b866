"""Tokens sent to the ranks that have their experts, and what comes back: an all-to-all whose parts differ by step.

A token goes once to each rank that has any of its experts, with its indices and its scores; there they are computed,
multiplied by their scores and added up, so one row comes back. No token is dropped and nothing is padded: how many
rows go where is counted, and the counts are exchanged, before the rows are.

    experts of rank m: those from m·E/n on        token t goes to m  <=>  some index[t, j] is one of them

What crosses is rows of bytes, so that a token, its scores and its indices are one message whatever their dtypes are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.runtime import host
from autoplan.runtime.collectives import raw

BYTE = torch.uint8


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

    tokens          the token of each row that is sent, by member and then in their order
    sent, received  rows to and from each member
    counts          [2, members, 2] in the host's memory: of what goes and what comes the rows, and how many of their
                    choices name one of the receiver's experts
    """

    peers: Peers
    tokens: Tensor
    sent: list[int]
    received: list[int]
    counts: Tensor

    @staticmethod
    def of(index: Tensor, experts: int, peers: Peers, counts: Tensor | None = None) -> Journey:
        """index [tokens, k]; ``experts`` of each rank.

        counts  of a journey before of the same tokens; where there are none they are exchanged, and the host waits for
                the device
        """
        names = index.unsqueeze(0) // experts == torch.arange(peers.size, device=index.device).view(-1, 1, 1)
        goes = names.any(-1)
        if counts is None:
            sent, ones = torch.stack([goes.sum(1), names.sum((1, 2))], 1), [1] * peers.size
            both = torch.stack([sent, raw.all_to_all_rows(sent, ones, ones, peers.group, peers.places)])
            even = [[even_rows(index, experts, peers.size), index.numel() // peers.size]] * peers.size
            counts = torch.tensor(host.read(both, lambda: [even] * 2))
        there, back = counts[..., 0].tolist()
        tokens = torch.nonzero_static(goes, size=sum(there))[:, 1]  # as many as were counted: no second wait
        return Journey(peers, tokens, there, back, counts)

    @property
    def choices(self) -> int:
        """Of the rows that come here: how many name one of this rank's experts."""
        return int(self.counts[1, :, 1].sum())

    def send(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Of tensors [tokens, width] each the rows that come here, [rows, width], in one message."""
        message = packed([part.index_select(0, self.tokens) for part in parts])
        arrived = raw.all_to_all_rows(message, self.sent, self.received, self.peers.group, self.peers.places)
        return unpacked(arrived, parts)

    def back(self, count: int, *parts: Tensor) -> list[Tensor]:
        """Of tensors [rows that came here, width] each the sums over a token's rows, [count, width]: added member by
        member, so that two runs give the same bits."""
        arrived = raw.all_to_all_rows(packed(parts), self.received, self.sent, self.peers.group, self.peers.places)
        places = self.tokens.split(self.sent)
        return [added(rows, self.sent, places, count) for rows in unpacked(arrived, parts)]


def even_rows(index: Tensor, experts: int, members: int) -> int:
    """Rows to each member where every expert is as likely: a token goes where any of its k experts is."""
    tokens, choices = index.shape
    elsewhere = math.comb(experts * (members - 1), choices) / math.comb(experts * members, choices)
    return round(tokens * (1 - elsewhere))


def added(rows: Tensor, lengths: Sequence[int], places: Sequence[Tensor], count: int) -> Tensor:
    total = rows.new_zeros(count, rows.shape[1])
    for part, place in zip(rows.split(list(lengths)), places, strict=True):
        total.index_add_(0, place, part)
    return total


def packed(parts: Sequence[Tensor]) -> Tensor:
    """[rows, width] each -> [rows, bytes]; one alone as it is."""
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.cat([part.contiguous().view(BYTE) for part in parts], 1)


def unpacked(message: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors that ``packed`` made one, with the dtypes and widths of these. Each is copied out even where it is
    one row, which counts as contiguous wherever it begins, so that it begins where its dtype may."""
    if len(like) == 1:
        return (message,)
    widths = [math.prod(x.shape[1:]) * x.element_size() for x in like]
    apart = [part.clone(memory_format=torch.contiguous_format) for part in message.split(widths, 1)]
    return tuple(part.view(x.dtype) for part, x in zip(apart, like, strict=True))
