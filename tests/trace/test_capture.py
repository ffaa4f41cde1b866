"""What export makes for readers of its graph isn't made, and torch's settings are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import fx, nn
from torch.fx import _lazy_graph_module as lazy

from autoplan.errors import TraceError
from autoplan.trace.capture import capture, has_stacks_off


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


@pytest.mark.skipif(not has_stacks_off(), reason="torch 2.11 has no such switch")
def test_no_node_has_its_stack_and_graphs_are_printed_once() -> None:
    with printed() as often:
        plain = torch.export.export(Doubled(), (torch.zeros(2),), strict=False)
    with printed() as once:
        found = capture(Doubled(), [torch.zeros(2)])
    assert any(node.stack_trace for node in plain.graph.nodes)
    assert not any(node.stack_trace for node in found.graph.nodes)
    assert len(once) <= 1 < len(often)


@pytest.mark.skipif(not has_stacks_off(), reason="torch 2.11 has no such switch")
def test_settings_are_as_before_also_where_the_module_can_not_be_traced() -> None:
    for module in (Doubled(), Branching()):
        try:
            capture(module, [torch.zeros(2)])
        except TraceError as error:
            assert isinstance(module, Branching) and "x.sum() > 0" in str(error)
        assert fx.config.do_not_emit_stack_traces is False
        assert lazy._use_lazy_graph_module_flag is False


def test_a_torch_that_makes_stacks_all_the_same_traces_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoplan.trace.capture.has_stacks_off", lambda: False)
    assert any(node.stack_trace for node in capture(Doubled(), [torch.zeros(2)]).graph.nodes)


@pytest.mark.skipif(not has_stacks_off(), reason="torch 2.11 has no such switch")
@pytest.mark.parametrize("asked", [False, True])
def test_who_asked_for_no_stacks_gets_none_after(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx.config, "do_not_emit_stack_traces", asked)
    capture(Doubled(), [torch.zeros(2)])
    assert fx.config.do_not_emit_stack_traces is asked
