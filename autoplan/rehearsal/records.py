"""What is written down of a rehearsed step: every call of one rank in the order of its host, its memory, its findings.

Ranks are named by their global numbers, groups by the `Span` of their members: other ranks of a class have the same
calls, over groups of the same spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["operator", "collective", "send", "receive", "wait", "join", "copy", "stop"]
"""
operator    a kernel on a stream of the device
collective  of all members of a group, on the communicator's own stream, after what its stream holds so far
send        of one message to one peer; likewise
receive     of one message from one peer; likewise
wait        a stream, or the host, waits for the end of a collective, a send or a receive
join        a stream waits for what another one holds so far
copy        between the host's memory and the device's
stop        the host waits until the device has come so far: `item`, `tolist`, a blocking copy, a synchronisation
"""

Span = tuple[tuple[int, int], ...]
"""A group of ranks by (stride, size) of each axis that it spans, greatest stride first; the rank's own coordinate along
them may be any: rank r's group has r's other coordinates. () is a group of one."""

HOST = -1
"""In a stream's place: the host itself waits, as for gloo's collectives on the CPU."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    name    the operator ("aten.mm.default"), the collective ("all-reduce sum"), what stops the host ("item")
    number  counts the calls of a rank; what a wait waits for is named by it
    stream  on which it is issued: 0 is the default one, HOST the host
    line    the innermost line of the program, the runtime or the engine: "program.py:31", "runtime/ops/norm.py:40"
    during  what it is part of: "forward 3", "backward 3" (by the number of the microbatch and the stage: "forward 3 of
            stage 1"), "update", "gradient sums", "start"
    bytes   of a collective or a message what the rank puts in; of a gather that, too. Of a copy what is copied
    span    of the group of a collective or a message
    peer    of a message: the other rank's number less this rank's
    dtype   of what crosses
    batch   of messages that are posted together (one ncclGroup), which progress together: a number, else 0
    group   the order of the process group among the rank's own that lie over the same ranks: two communicators with the
            same members have streams of their own
    of      of a wait the numbers of the calls that are waited for; of a join (the stream that is waited for,)
    flops   of an operator
    moved   bytes that an operator reads and writes
    """

    kind: Kind
    name: str
    number: int
    stream: int = 0
    line: str = ""
    during: str = ""
    bytes: int = 0
    span: Span = ()
    peer: int = 0
    dtype: str = ""
    batch: int = 0
    group: int = 0
    of: tuple[int, ...] = ()
    flops: int = 0
    moved: int = 0


@dataclass(frozen=True)
class Alive:
    """One kind of bytes at a moment: "parameters", "gradients", "optimizer state", "activations", "buffers", …"""

    kind: str
    bytes: int
    storages: int


@dataclass(frozen=True)
class Standing:
    """Storages that stood at the peak and were made by the same operator of the same line, ``count`` in all."""

    bytes: int
    kind: str
    name: str
    line: str
    count: int = 1


@dataclass(frozen=True)
class Peak:
    """The most bytes of tensors on the device at once, in a step and the update after it.

    during, name, line  the call at which it stood
    kinds    what it is made of, largest first
    largest  the largest groups of storages alive then, by who made them
    """

    bytes: int
    during: str
    name: str
    line: str
    kinds: tuple[Alive, ...]
    largest: tuple[Standing, ...]


@dataclass(frozen=True)
class Finding:
    """Something in the program that an accelerator would trip over.

    what  "host stop", "kept alive", "wrong device", "no price", "failed"
    line  where
    text  what happens there, in a sentence
    """

    what: str
    line: str
    text: str
    count: int = 1


@dataclass(frozen=True)
class RankTrace:
    """One rehearsed rank.

    rank          its global number
    stages        the pipeline stages that it holds
    microbatches  that were run
    calls         of one step and its update, after a first one in which the optimizer's state was made
    held          bytes between two steps, by kind
    curve         (number of the call, bytes alive after it), where it changes by more than a hundredth of the peak
    """

    rank: int
    stages: tuple[int, ...]
    microbatches: int
    calls: tuple[Call, ...]
    peak: Peak
    held: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    curve: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RankClass:
    """Ranks that run the same calls.

    ranks   their global numbers, ascending
    reason  what sets it apart: "stage 3", "stage 0, dp=0"
    """

    ranks: tuple[int, ...] = field(repr=False)
    reason: str

    @property
    def first(self) -> int:
        return self.ranks[0]
