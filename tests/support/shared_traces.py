"""Traces that tests share: a model of the same classes, sizes and settings is traced once a process, and once in a run
of several processes where they have a folder in common."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import torch
from filelock import FileLock
from torch import nn
from transformers import PreTrainedModel

from autoplan.evaluation.proof import Given
from autoplan.ir.graph import Model
from autoplan.models.inputs import Inputs
from autoplan.plan import Plan
from autoplan.trace.pipeline import trace
from tests.support.common_folder import TRACES_FOLDER

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# Modules of which all processes of a run have the same: no script that a test has written.
SAME_EVERYWHERE = ("autoplan.", "tests.", "test_", "torch.", "transformers.")


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
            first = functools.partial(trace, model, inputs, **options)  # type: ignore[arg-type]
            text = text_of(key) if TRACES_FOLDER in os.environ else None
            self.known[key] = first() if text is None else traced_once(Path(os.environ[TRACES_FOLDER]), text, first)
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


def traced_once(folder: Path, text: str, first: Callable[[], Model]) -> Model:
    """What ``first`` gives to whichever process asks first; the others wait for it and read it."""
    file = folder / hashlib.sha256(text.encode()).hexdigest()
    with FileLock(f"{file}.lock"):
        if not file.exists():
            model = first()
            part = file.with_suffix(".part")  # a process that is killed while it writes leaves no half of a trace
            part.write_bytes(pickle.dumps((text, model)))
            part.replace(file)
            return model
        kept, model = pickle.loads(file.read_bytes())
    assert kept == text, "two keys of one hash"
    return model


def text_of(key: object) -> str | None:
    """The same in every process; None for a key with a class or function that no other process finds by its name, or
    that a test has put in place of another."""
    if isinstance(key, tuple):
        parts = [text_of(part) for part in key]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    if is_plain(key) or isinstance(key, torch.dtype | torch.Size):
        return repr(key)
    module, name = getattr(key, "__module__", None), getattr(key, "__qualname__", None)
    if not module or not name or not module.startswith(SAME_EVERYWHERE):
        return None
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is key else None


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
