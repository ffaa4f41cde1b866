"""Traces that tests share: a model of transformers, as its configuration makes it, is traced once a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from torch import nn
from transformers import PreTrainedModel

from autoplan.evaluation.proof import Given
from autoplan.ir.graph import Model
from autoplan.models.inputs import Inputs
from autoplan.plan import Plan
from autoplan.trace.pipeline import trace


@dataclass
class SharedTraces:
    """Graphs by all that they follow from. A module whose class isn't transformers' own is traced each time."""

    known: dict[object, Model] = field(default_factory=dict)

    def trace(self, model: nn.Module, inputs: Inputs, **options: object) -> Model:
        """What ``autoplan.trace.pipeline.trace`` gives."""
        key = key_of(model, inputs, options)
        if key is None:
            return trace(model, inputs, **options)  # type: ignore[arg-type]
        if key not in self.known:
            self.known[key] = trace(model, inputs, **options)  # type: ignore[arg-type]
        return self.known[key]

    @contextmanager
    def within(self) -> Iterator[None]:
        """Within it what is planned is traced so."""
        with patch("autoplan.compile.trace", self.trace):
            yield

    def proving(self, plan: Plan) -> Plan:
        """The plan, whose export traces so, too."""

        def shared(retrace: Callable[[Inputs], Model]) -> Callable[[Inputs], Model]:
            def again(inputs: Inputs) -> Model:
                with self.within():
                    return retrace(inputs)

            return again

        given: Given | None = plan.given
        if given is None:
            return plan
        return replace(plan, given=replace(given, retrace=shared(given.retrace), retrain=shared(given.retrain)))


def key_of(model: nn.Module, inputs: Inputs, options: Mapping[str, object]) -> object:
    """None for a module, a batch or a loss that says less than all of a trace."""
    foreign = not isinstance(model, PreTrainedModel) or not type(model).__module__.startswith("transformers.models.")
    if foreign or options.get("loss_fn") is not None or not isinstance(inputs, Mapping):
        return None
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    if hooked or not all(isinstance(value, torch.Tensor) for value in inputs.values()):
        return None
    config = (type(model), model.config.to_json_string(use_diff=False), model.config._attn_implementation)
    modules = tuple((name, type(m), settings_of(m)) for name, m in model.named_modules())
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    held = tuple((first.setdefault(id(t), name), t.shape, t.dtype, t.requires_grad) for name, t in tensors)
    batch = tuple((name, value.shape, value.dtype) for name, value in inputs.items())
    return config, repr(model), modules, held, batch, tuple(sorted(options.items()))


def settings_of(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """A module's own numbers and texts, whether it trains among them."""
    return tuple((name, v) for name, v in vars(module).items() if isinstance(v, bool | int | float | str))
