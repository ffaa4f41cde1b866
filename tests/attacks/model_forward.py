"""What the model's forward does beside computing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from autoplan.errors import AutoplanError
from tests.attacks.attack import Attack, Place, Silent, equal, refused, registering
from tests.attacks.traced_model import GENERATOR, Two, as_one_device, doubled, traced
from tests.support.own_backwards import Straight

ATTACKS: list[Attack] = []
attack = registering("model", ATTACKS)


@dataclass(frozen=True)
class Bodies:
    """What forward does in each attack."""

    @staticmethod
    def activation_hook(m: Two, x: Tensor) -> Tensor:
        h = m.a(x)
        h.register_hook(doubled)
        return m.b(h)

    @staticmethod
    def saving(m: Two, x: Tensor) -> Tensor:
        with saved_tensors_hooks(doubled, lambda t: t):
            return m.b(F.gelu(m.a(x)))

    @staticmethod
    def autocast(m: Two, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return m.b(F.gelu(m.a(x)))

    @staticmethod
    def inference(m: Two, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = m.a(x)
        return m.b(h.clone())

    @staticmethod
    def counting(m: Two, x: Tensor) -> Tensor:
        m.calls = getattr(m, "calls", 0) + 1  # type: ignore[assignment]
        return m.b(m.a(x)) * min(m.calls / 1000, 1.0)  # type: ignore[operator]

    @staticmethod
    def counting_in_a_config(m: Two, x: Tensor) -> Tensor:
        m.config.steps += 1  # type: ignore[operator,union-attr]
        return m.b(m.a(x)) * (0.1 if m.config.steps < 5 else 1.0)  # type: ignore[operator,union-attr]

    @staticmethod
    def averaging(m: Two, x: Tensor) -> Tensor:
        m.mean = 0.9 * getattr(m, "mean", torch.ones(8)) + 0.1 * x.mean(0)  # type: ignore[assignment]
        return m.b(m.a(x)) - m.mean

    @staticmethod
    def in_place(m: Two, x: Tensor) -> Tensor:
        m.scale.add_(1)  # type: ignore[operator,union-attr]
        return m.b(m.a(x)) * m.scale

    @staticmethod
    def replacing(m: Two, x: Tensor) -> Tensor:
        m.steps = m.steps + 1  # type: ignore[has-type]
        return m.b(m.a(x)) / m.steps

    @staticmethod
    def appending(m: Two, x: Tensor) -> Tensor:
        m.history.append(len(m.history))  # type: ignore[union-attr,operator,arg-type]
        return m.b(m.a(x)) * len(m.history)  # type: ignore[arg-type]

    @staticmethod
    def drawing(m: Two, x: Tensor) -> Tensor:
        return m.b(m.a(x)) if random.random() < 0.5 else m.b(x)

    @staticmethod
    def drawing_by_numpy(m: Two, x: Tensor) -> Tensor:
        return m.b(m.a(x)) * float(np.random.rand())

    @staticmethod
    def drawing_by_its_own(m: Two, x: Tensor) -> Tensor:
        return m.b(m.a(x)) * m.random.random()  # type: ignore[operator,union-attr]

    @staticmethod
    def drawing_by_a_generator(m: Two, x: Tensor) -> Tensor:
        return m.b(m.a(x)) * torch.bernoulli(torch.full_like(x, 0.5), generator=GENERATOR)

    @staticmethod
    def past_the_gradient(m: Two, x: Tensor) -> Tensor:
        return F.linear(m.a(x), m.b.weight.data)

    @staticmethod
    def clamping(m: Two, x: Tensor) -> Tensor:
        m.a.weight.data.clamp_(-0.01, 0.01)
        return m.b(m.a(x))


FORWARDS: tuple[tuple[str, str, Callable, dict[str, Any], tuple[str, ...]], ...] = (
    ("a hook on an activation", "its gradient as if there were none", Bodies.activation_hook, {}, ("doubled",)),
    ("saved_tensors_hooks in forward", "gradients without what they do", Bodies.saving, {}, ("doubled", "saved")),
    ("autocast for cuda in forward", "left out, for the trace is on the CPU", Bodies.autocast, {}, ("autocast",)),
    ("inference_mode in forward", "gradients pass all the same", Bodies.inference, {}, ("inference_mode",)),
    ("a warm-up counted in an attribute", "the first step's factor for ever", Bodies.counting, {}, ("calls",)),
    (
        "a counter in an object that the model holds", "the first step's factor for ever",
        Bodies.counting_in_a_config, {"config": SimpleNamespace(steps=0)}, ("config",),
    ),
    ("a running mean kept as an attribute", "the first step's mean for ever", Bodies.averaging, {}, ("mean",)),
    (
        "a plain tensor changed in place", "a value that tracing itself has changed",
        Bodies.in_place, {"scale": torch.ones(())}, ("scale",),
    ),
    ("a list that forward appends to", "its first length for ever", Bodies.appending, {"history": []}, ("history",)),
    ("layers skipped by random.random()", "one draw for ever", Bodies.drawing, {}, ("draws from random",)),
    ("a factor of numpy.random", "one draw for ever", Bodies.drawing_by_numpy, {}, ("draws from numpy.random",)),
    (
        "a random.Random of the model's own", "one draw for ever",
        Bodies.drawing_by_its_own, {"random": random.Random(3)}, ("random",),
    ),
    ("draws from a torch.Generator", "other numbers than its", Bodies.drawing_by_a_generator, {}, ("Generator",)),
    ("weight.data.clamp_() in forward", "a weight that isn't clamped", Bodies.clamping, {}, ("weight", "in place")),
)  # fmt: skip


def body_attack(body: Callable, attributes: dict[str, Any], words: tuple[str, ...]) -> Callable[[Place], str]:
    def run(_: Place) -> str:
        module = Two(body)
        for name, value in attributes.items():
            setattr(module, name, value)
        return refused(lambda: traced(module), *words)

    return run


for forward_name, forward_guards, forward_body, forward_attributes, forward_words in FORWARDS:
    attack(forward_name, forward_guards)(body_attack(forward_body, forward_attributes, forward_words))


@attack("weight.data in forward", "the weight's first value for ever, or a gradient")
def past_the_gradient(_: Place) -> str:
    return as_one_device(Two(Bodies.past_the_gradient))


@attack("a buffer that forward replaces", "its first value for ever")
def replaced_buffer(_: Place) -> str:
    module = Two(Bodies.replacing)
    module.register_buffer("steps", torch.ones(()))
    return as_one_device(module)


@attack("a tensor put aside in every forward, and never read", "refused though nothing comes of it")
def put_aside(_: Place) -> str:
    def body(m: Two, x: Tensor) -> Tensor:
        m.last = m.a(x)  # type: ignore[assignment]
        return m.b(m.last)

    return as_one_device(Two(body))


@attack("reentrant checkpointing", "its layers, and all after them, get no gradient")
def reentrant(_: Place) -> str:
    def body(m: Two, x: Tensor) -> Tensor:
        return m.b(checkpoint(lambda h: F.gelu(m.a(h)).sin(), m.a(x), use_reentrant=True))

    return as_one_device(Two(body))


@attack("planning within torch.autocast", "planned without, and said nothing")
def autocast_around(_: Place) -> str:
    with torch.autocast("cpu", torch.bfloat16):
        return refused(lambda: traced(Two()), "torch.autocast")


class Clipping(Straight):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-1e-3, 1e-3)


@attack("a straight-through function", "gradients of round, which are zero")
def straight(_: Place) -> str:
    return as_one_device(Two(lambda m, x: m.b(Straight.apply(3 * m.a(x)))))


@attack("planning within torch.no_grad", "a function that clips gradients isn't looked at")
def planned_without_gradients(_: Place) -> str:
    with torch.no_grad():
        traced(Two())
        return refused(lambda: traced(Two(lambda m, x: m.b(Clipping.apply(m.a(x))))), "Clipping", "nor linear")


@attack("a refused model, and then the same without its hook", "torch itself is left patched")
def nothing_left_patched(_: Place) -> str:
    before = (Tensor.register_hook, saved_tensors_hooks.__enter__, torch.autocast.__init__)
    for body in (Bodies.activation_hook, Bodies.saving, Bodies.autocast):
        try:
            traced(Two(body))
        except AutoplanError:
            continue
        raise Silent("it went through")
    after = (Tensor.register_hook, saved_tensors_hooks.__enter__, torch.autocast.__init__)
    return equal(before == after, as_one_device(Two()))
