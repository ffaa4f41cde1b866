"""Traces that tests share: a model of the same classes, sizes and settings is traced once a process."""

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

OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@dataclass
class SharedTraces:
    """Graphs by all that they follow from. A module with attributes of another kind than numbers and texts is traced
    each time."""

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
    """None for a module or a batch that says less than all of a trace. A loss is the function that is given."""
    named = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    own = isinstance(model, PreTrainedModel) and type(model).__module__.startswith("transformers.models.")
    plain = own or all(map(is_plain, (value for m in model.modules() for value in settings_of(m).values())))
    if hooked or not plain or not all(isinstance(value, torch.Tensor) for value in named.values()):
        return None
    config = (model.config.to_json_string(use_diff=False), model.config._attn_implementation) if own else ()
    modules = tuple((name, type(m), type(m).forward, repr(settings_of(m))) for name, m in model.named_modules())
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    held = tuple((first.setdefault(id(t), name), *shown(t), t.requires_grad) for name, t in tensors)
    batch = tuple((name, *shown(value)) for name, value in named.items())
    return config, repr(model), modules, held, batch, tuple(sorted(options.items()))


def settings_of(module: nn.Module) -> dict[str, object]:
    """A module's own attributes, whether it trains among them; of transformers' its numbers and texts."""
    own = {name: value for name, value in vars(module).items() if name == "training" or name not in OF_EVERY_MODULE}
    hugging_face = type(module).__module__.startswith("transformers.")
    return {n: v for n, v in own.items() if is_plain(v)} if hugging_face else own


def is_plain(value: object) -> bool:
    """Whether a value says all of itself."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def shown(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device.type
