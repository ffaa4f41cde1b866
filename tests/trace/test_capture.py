"""What export makes for readers of its graph isn't made, and torch's settings are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import fx, nn
from torch.fx import _lazy_graph_module as lazy
from torch.nn.modules import transformer

from autoplan.errors import TraceError
from autoplan.trace.capture import STACKS, capture


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@contextmanager
def printed() -> Iterator[list[fx.Graph]]:
    """The graphs whose Python code is made within it."""
    found, real = [], fx.Graph.python_code

    def counted(graph: fx.Graph, *args: object, **options: object) -> object:
        found.append(graph)
        return real(graph, *args, **options)  # type: ignore[arg-type]

    with patch.object(fx.Graph, "python_code", counted):
        yield found


def test_no_node_has_its_stack_and_graphs_are_printed_once() -> None:
    with printed() as often:
        plain = torch.export.export(Doubled(), (torch.zeros(2),), strict=False)
    with printed() as once:
        found = capture(Doubled(), [torch.zeros(2)])
    assert any(node.stack_trace for node in plain.graph.nodes)
    assert not any(node.stack_trace for node in found.graph.nodes) or not hasattr(fx.config, STACKS)
    assert len(once) <= 1 < len(often)


def test_settings_are_as_before_also_where_the_module_can_not_be_traced() -> None:
    for module in (Doubled(), Branching()):
        try:
            capture(module, [torch.zeros(2)])
        except TraceError as error:
            assert isinstance(module, Branching) and "x.sum() > 0" in str(error)
        assert not getattr(fx.config, STACKS, False)
        assert lazy._use_lazy_graph_module_flag is False


@pytest.mark.skipif(not hasattr(fx.config, STACKS), reason="torch 2.11 has no such setting")
@pytest.mark.parametrize("asked", [False, True])
def test_who_asked_for_no_stacks_gets_none_after(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx.config, STACKS, asked)
    capture(Doubled(), [torch.zeros(2)])
    assert getattr(fx.config, STACKS) is asked


def test_torch_without_the_setting_is_left_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.11 is; the later ones read it themselves."""
    config = SimpleNamespace()
    monkeypatch.setattr("autoplan.trace.capture.fx", SimpleNamespace(config=config))
    assert capture(Doubled(), [torch.zeros(2)]).graph.nodes
    assert not vars(config)


class Waiting(nn.Module):
    """While it is traced it lets another thread begin, and waits a little for that one's trace."""

    def __init__(self, begun: Event, other: Event) -> None:
        super().__init__()
        self.begun, self.other = begun, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun.set()
        self.other.wait(0.3)
        return x + x


def test_two_threads_that_capture_leave_the_settings_as_they_were() -> None:
    first, second = Event(), Event()

    def after_the_first() -> None:
        first.wait()
        capture(Waiting(second, Event()), [torch.zeros(2)])

    with ThreadPoolExecutor(2) as threads:
        behind = threads.submit(after_the_first)
        threads.submit(capture, Waiting(first, second), [torch.zeros(2)]).result()
        behind.result()
    assert lazy._use_lazy_graph_module_flag is False and not getattr(fx.config, STACKS, False)
    assert transformer._detect_is_causal_mask.__module__ == transformer.__name__
