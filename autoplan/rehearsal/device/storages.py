"""The lives of storages on the device: when each was made, by which call, how large it was and when it went."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from autoplan.rehearsal.records import Alive, Peak, Standing

LARGEST = 12  # groups of storages that a peak names
CURVE_STEP = 0.01  # of the peak: smaller changes are left out of the curve


@dataclass(slots=True)
class Life:
    """One storage, or the time for which it had one size.

    born, died   calls of the rank; died None: it is still there
    before       whether it stood when the calls were counted from 0
    """

    bytes: int
    born: int
    kind: str
    name: str
    line: str
    during: str
    died: int | None = None
    before: bool = False


Change = tuple[int, int, Life | None]
"""After so many calls the storage of a key begins (with its life), or ends (None)."""


class Storages:
    """All storages that live or have lived since ``restart``.

    journal  where it isn't None, each change is written into it as it comes
    """

    def __init__(self) -> None:
        self.journal: list[Change] | None = None
        self.references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.alive: dict[int, Life] = {}
        self.ended: list[Life] = []
        self.kinds: dict[int, str] = {}  # of storages that are known by what they are for
        self.now_bytes, self.call = 0, 0
        self.peak_bytes = self.peak_call = 0

    def restart(self) -> None:
        """Forgets what has gone, and the peak so far; calls are counted from 0 again."""
        self.ended.clear()
        self.call = 0
        for life in self.alive.values():
            life.born, life.before = 0, True
        self.peak_bytes, self.peak_call = self.now_bytes, self.call

    def follow(self, tensor: Tensor, kind: str, name: str, line: str, during: str) -> bool:
        """Notes a storage where it is new; whether it was."""
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self.references.get(key)
        if known is not None and known() is storage:
            return False
        self._forget(key, known)
        self.references[key] = weakref.ref(storage, partial(self._forget, key))
        self._begin(key, Life(storage.nbytes(), self.call, kind, name, line, during))
        return True

    def tag(self, tensor: Tensor, kind: str) -> None:
        """Says what a storage is for, whoever made it."""
        key = id(tensor.untyped_storage())
        self.kinds[key] = kind
        if key in self.alive:
            self.alive[key].kind = kind

    def kind_of(self, tensor: Tensor) -> str:
        return self.kinds.get(id(tensor.untyped_storage()), "")

    def resized(self, storage: torch.UntypedStorage) -> None:
        """fully_shard frees memory by a size of zero, and takes it by the size of before."""
        key = id(storage)
        life = self.alive.get(key)
        if life is None or life.bytes == storage.nbytes():
            return
        self._end(key)
        self._begin(key, Life(storage.nbytes(), self.call, life.kind, life.name, life.line, life.during))

    def pass_by(self, number: int, life: Life, kind: str, line: str, during: str) -> None:
        """Notes a storage that no tensor holds, as ``life`` was, until ``passed``."""
        self._begin(-1 - number, Life(life.bytes, self.call, kind, life.name, line, during))

    def passed(self, number: int) -> None:
        self._end(-1 - number)

    def _begin(self, key: int, life: Life) -> None:
        if self.journal is not None:
            self.journal.append((self.call, key, life))
        self.alive[key] = life
        self.now_bytes += life.bytes
        if self.now_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_call = self.now_bytes, self.call

    def _forget(self, key: int, reference: weakref.ref[torch.UntypedStorage] | None) -> None:
        if reference is not None and self.references.get(key) is reference:
            del self.references[key]
            self.kinds.pop(key, None)
            self._end(key)

    def _end(self, key: int) -> None:
        if self.journal is not None:
            self.journal.append((self.call, key, None))
        life = self.alive.pop(key)
        life.died = self.call
        self.now_bytes -= life.bytes
        if life.bytes:
            self.ended.append(life)

    def at(self, call: int) -> list[Life]:
        """Those that stood at a call."""
        lives = (*self.ended, *self.alive.values())
        return [life for life in lives if life.bytes and life.born <= call and (life.died is None or call < life.died)]

    def left(self, kinds: Sequence[str], more_than: int) -> list[Life]:
        """Storages of these kinds, of more bytes, that came since ``restart`` and still stand."""
        lives = self.alive.values()
        return [life for life in lives if not life.before and life.kind in kinds and life.bytes > more_than]

    def held(self) -> Mapping[str, int]:
        """Bytes that stand now, by kind."""
        return {alive.kind: alive.bytes for alive in by_kind(self.alive.values())}

    def peak(self, during: str, name: str, line: str) -> Peak:
        lives = self.at(self.peak_call)
        return Peak(self.peak_bytes, during, name, line, by_kind(lives), largest(lives))

    def curve(self) -> tuple[tuple[int, int], ...]:
        """(call, bytes after it), where they differ from the last point's by a hundredth of the peak or more."""
        changes: dict[int, int] = defaultdict(int)
        for life in (*self.ended, *self.alive.values()):
            changes[life.born] += life.bytes
            if life.died is not None:
                changes[life.died] -= life.bytes
        points, total, said = [], 0, -1
        for call in sorted(changes):
            total += changes[call]
            if said < 0 or abs(total - said) >= CURVE_STEP * self.peak_bytes:
                points.append((call, total))
                said = total
        return tuple(points)


def by_kind(lives: Iterable[Life]) -> tuple[Alive, ...]:
    """Bytes by kind, the most first."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for life in lives:
        if life.bytes:
            sizes[life.kind].append(life.bytes)
    found = [Alive(kind, sum(each), len(each)) for kind, each in sizes.items()]
    return tuple(sorted(found, key=lambda alive: (-alive.bytes, alive.kind)))


def largest(lives: Iterable[Life]) -> tuple[Standing, ...]:
    """The largest groups of storages that the same line made, in whatever microbatch and block."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for life in lives:
        groups[life.kind, life.name, life.line].append(life.bytes)
    found = [Standing(sum(each), kind, name, line, len(each)) for (kind, name, line), each in groups.items()]
    ordered = sorted(found, key=lambda standing: (-standing.bytes, standing.kind, standing.name, standing.line))
    return tuple(ordered[:LARGEST])
