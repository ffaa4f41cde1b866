"""Writes down what a rank issues: operators, collectives, messages, waits and stops, and the storages they make."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._pytree import tree_leaves

from autoplan.rehearsal.device.flops import flops_of
from autoplan.rehearsal.device.process_groups import FakeGroup
from autoplan.rehearsal.device.storages import Storages
from autoplan.rehearsal.device.streams import NAME, FakeDevice
from autoplan.rehearsal.records import HOST, Call, Finding, Kind, RankTrace, Span

RUNTIME = f"{Path(__file__).parents[2] / 'runtime'}/"
ENGINES = f"{Path(torch.__file__).parent / 'distributed'}/"
SHARDING, PIPELINING = "torch/distributed/fsdp", "runtime/pipeline/stage_messages.py"
FUNCTIONAL = {
    "all_reduce": "all-reduce", "all_reduce_": "all-reduce", "all_reduce_coalesced": "all-reduce",
    "all_gather_into_tensor": "all-gather", "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all_single": "all-to-all", "broadcast": "broadcast", "gather_after": "all-gather",
}  # fmt: skip
"""Collectives that are operators, by the names of ``torch.ops._c10d_functional``."""
GATHER_AFTER = ("autoplan", "gather_after")  # the runtime's own operator (``runtime.collectives.raw``)
REDUCTIONS = ("all-reduce", "reduce-scatter")
OF_A_STEP = ("activations", "gradients in flight")
"""Kinds of storages of which nothing is needed when a step has ended, but for a few numbers, as its loss."""
SCALARS_BYTES = 256


class Recorder:
    """What one rank has issued so far. It is told by the fake device, its process groups, and ``part``."""

    def __init__(self, program: Path, device: FakeDevice | None = None) -> None:
        self.program, self.device = str(program), device
        self.storages = Storages()
        self.groups: Counter[Span] = Counter()
        self.sharding = False  # whether the last call came of fully_shard's, wherever the program stood
        self.restart()

    def restart(self) -> None:
        """Forgets the calls so far; storages stay."""
        self.calls: list[Call] = []
        self.findings: Counter[tuple[str, str, str]] = Counter()
        self.during = "start"
        self.batch, self.batches = 0, 0
        self.in_flight: dict[int, int] = {}     # storage of a functional collective's result -> its number
        self.newest = (0, 0)  # a thread, and the number of the newest node of autograd that it knew
        self.lines_of_nodes: dict[int, str] = {}  # sequence number of a node of autograd -> the line of its forward
        self.storages.restart()
        if self.device is not None:
            self.device.turn += 1

    @contextmanager
    def part(self, during: str) -> Iterator[None]:
        """What is issued within it is part of this."""
        before, self.during = self.during, during
        try:
            yield
        finally:
            self.during = before

    @contextmanager
    def together(self) -> Iterator[None]:
        """Messages posted within it are one group: they progress side by side."""
        self.batches += 1
        self.batch = self.batches
        try:
            yield
        finally:
            self.batch = 0

    # what the device tells

    def ran(self, function: Any, args: tuple, kwargs: dict, result: Any) -> None:
        line = self.line()
        space, name = function.namespace, function._opname
        if space == "_c10d_functional" or (space, name) == GATHER_AFTER:
            if name == "wait_tensor" or name in FUNCTIONAL:
                self._functional(name, args, result, line)
            return
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, FakeTensor)]
        kind = self.kind(line)
        fresh = [x for x in made if self._follow(x, kind, f"{space}.{name}", line)]
        written = made or changed(function, args, kwargs)
        changes = function._schema.is_mutable and written and name not in _ORDERS
        if is_view(function) or name in _ALLOCATE or not (changes or fresh):
            return
        flops = flops_of(function, args, kwargs, result)
        moved = sum(x.numel() * x.element_size() for x in (*given, *written))
        self._note("operator", f"{space}.{name}", line=line, flops=flops, moved=moved)

    def fused(self, name: str, given: Sequence[Any], made: Sequence[Any]) -> None:
        line, written = self.line(), [x for x in tree_leaves(made) if isinstance(x, FakeTensor)]
        for x in written:
            self._follow(x, self.kind(line), name, line)
        moved = sum(x.numel() * x.element_size() for x in (*given, *written) if isinstance(x, Tensor))
        self._note("operator", name, line=line, moved=moved)

    def copied(self, source: Tensor, target: Tensor, *, to_device: bool, blocking: bool) -> None:
        line, name = self.line(), "host to device" if to_device else "device to host"
        size = source.numel() * source.element_size()
        if to_device:
            self._follow(target, "batch" if self.during == "start" else "activations", "copy", line)
        self._note("copy", name, line=line, bytes=size)
        if blocking:
            self.stopped(f"a blocking copy of {size} bytes {'to' if to_device else 'from'} the device")

    def joined(self, stream: int, other: int) -> None:
        if stream != other:
            self._note("join", "stream", stream=stream, of=(other,), line=self.line())

    def stopped(self, what: str) -> None:
        line = self.line()
        self._note("stop", what, line=line)
        self.findings["host stop", line, f"{what}: the host waits for the device"] += 1

    def resized(self, storage: torch.UntypedStorage) -> None:
        self.storages.resized(storage)

    # what the process groups tell

    def joins(self, span: Span) -> int:
        self.groups[span] += 1
        return self.groups[span] - 1

    def collective(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], group: FakeGroup) -> int:
        line, on_device = self.line(), any(x.device.type == NAME for x in (*given, *made))
        return self._collective(name, given, made, group, line, on_device)

    def message(self, name: str, tensor: Tensor, peer: int, group: FakeGroup) -> int:
        kind: Kind = "send" if name == "send" else "receive"
        size, offset = tensor.numel() * tensor.element_size(), peer - group.ranks[group.rank()]
        return self._note(
            kind, name, line=self.line(), bytes=size, span=group.span, group=group.number, peer=offset,
            dtype=short(tensor.dtype), batch=self.batch,
        )  # fmt: skip

    def waited(self, number: int, on_device: bool) -> None:
        self._note("wait", "wait", stream=self.stream() if on_device else HOST, line=self.line(), of=(number,))

    def repeat(self, calls: Sequence[Call], start: int, line: str) -> None:
        """Notes calls as they were noted before, counted from ``start`` and of another line."""
        for c in calls:
            of = tuple(number + start for number in c.of) if c.kind == "wait" else c.of
            self.calls.append(Call(c.kind, c.name, c.number + start, c.stream, line, self.during, c.bytes, c.span,
                                   c.peer, c.dtype, c.batch, c.group, of, c.flops, c.moved))  # fmt: skip
        self.storages.call = len(self.calls)

    # what is made of it

    def trace(self, rank: int, stages: tuple[int, ...], microbatches: int) -> RankTrace:
        for life in self.storages.left(OF_A_STEP, SCALARS_BYTES):
            text = f"{life.name}: {life.bytes:,} bytes of {life.kind} are held beyond the step"
            self.findings["kept alive", life.line, text] += 1
        call = self.calls[min(self.storages.peak_call, len(self.calls) - 1)]
        findings = tuple(Finding(*which, count=count) for which, count in self.findings.items())
        peak = self.storages.peak(call.during, call.name, call.line)
        return RankTrace(
            rank, stages, microbatches, tuple(self.calls), peak, self.storages.held(), findings, self.storages.curve()
        )

    def line(self) -> str:
        """Where the program is: its own line where there is one, else the innermost of the runtime and the engines."""
        frame, inner = sys._getframe(2), ""
        self.sharding = False
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self.program:
                return self._placed(f"program.py:{frame.f_lineno}")
            if not inner and file.startswith(RUNTIME):
                inner = f"{file[len(RUNTIME) - 8 :]}:{frame.f_lineno}"
            elif not inner and file.startswith(ENGINES):
                inner = f"torch/distributed/{file[len(ENGINES) :]}:{frame.f_lineno}"
                self.sharding = inner.startswith(SHARDING)
            frame = frame.f_back  # type: ignore[assignment]
        node = torch._C._current_autograd_node()
        if node is not None and not self.sharding:
            forward = self.lines_of_nodes.get(node._sequence_nr())
            if forward:
                return f"{forward} (backward)"
        return inner

    def _placed(self, line: str) -> str:
        """Remembers which node of autograd comes of the line: a thread's newest, where it came since the last call. A
        Function's forward runs without gradients, inside its own node; elsewhere without them the last node has a line
        already."""
        newest = threading.get_ident(), torch.autograd._get_sequence_nr() - 1
        if torch.is_grad_enabled() and newest != self.newest:
            self.lines_of_nodes[newest[1]] = line
        else:
            self.lines_of_nodes.setdefault(newest[1], line)
        self.newest = newest
        return line

    def _functional(self, name: str, args: tuple, result: Any, line: str) -> None:
        if name == "wait_tensor":
            number = self.in_flight.pop(id(args[0].untyped_storage()), None)
            if number is not None:
                self._note("wait", "wait", stream=self.stream(), line=line, of=(number,))
            return
        group = _resolve_process_group(next(a for a in reversed(args) if isinstance(a, str)))  # type: ignore[arg-type]
        assert isinstance(group, FakeGroup)
        given, made = [x for x in tree_leaves(args[0]) if isinstance(x, Tensor)], tree_leaves(result)
        for x in made:
            self._follow(x, self.kind(line), name, line)
        said = FUNCTIONAL[name]
        if said == "all-to-all" and len({*args[1], *args[2]}) > 1:
            said = "all-to-all-v"
        if said in REDUCTIONS:
            said = f"{said} {next(a for a in args if isinstance(a, str))}"
        number = self._collective(said, given, made, group, line, on_device=True)
        self.in_flight |= {id(x.untyped_storage()): number for x in made}

    def _collective(
        self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], group: FakeGroup, line: str, on_device: bool
    ) -> int:
        size = sum(x.numel() * x.element_size() for x in given)
        dtype = short(given[0].dtype) if given else ""
        stream = self.stream() if on_device else HOST
        return self._note(
            "collective", name, stream=stream, line=line, bytes=size, span=group.span, group=group.number,
            dtype=dtype,
        )  # fmt: skip

    def kind(self, line: str) -> str:
        if self.during == "update":
            return "update"
        if self.sharding:
            return "gathered parameters"
        if line.startswith(PIPELINING):
            return "messages"
        if self.during.startswith("backward"):
            return "gradients in flight"
        return "activations" if self.during.startswith("forward") else "other"

    def _follow(self, x: Tensor, kind: str, name: str, line: str) -> bool:
        return x.device.type == NAME and self.storages.follow(x, kind, name, line, self.during)

    def stream(self) -> int:
        return self.device.current.number if self.device is not None else 0

    def _note(self, kind: Kind, name: str, **fields: Any) -> int:
        fields.setdefault("stream", self.stream())
        self.calls.append(Call(kind, name, len(self.calls), during=self.during, **fields))
        self.storages.call = len(self.calls)
        return len(self.calls) - 1


_ALLOCATE = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
_ORDERS = ("record_stream",)
"""Takes an operand as one that changes, and launches nothing."""


def changed(function: Any, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The operands on the device that an operator writes to, as one of many tensors does that returns none."""
    named = {a.name: x for a, x in zip(function._schema.arguments, args, strict=False)} | dict(kwargs)
    written = [named.get(a.name) for a in function._schema.arguments if a.alias_info and a.alias_info.is_write]
    return [x for x in tree_leaves(written) if isinstance(x, FakeTensor)]


def is_view(function: Any) -> bool:
    """Whether an operator's results are views of its arguments."""
    returns = function._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
