"""The model as it was handed over: its modes, its hooks, what its forward does beside computing, what it returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.modules import module as process_wide
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from autoplan import Parallelism
from autoplan.errors import AutoplanError
from autoplan.ir.graph import Model
from autoplan.trace import check_dtypes, trace
from autoplan.verify.reference import reference_of
from tests.attacks.attack import Attack, Place, Silent, equal, refused, refused_command
from tests.support.interpret import interpret
from tests.support.planning import parallelize_alone

Batch = tuple[Tensor, ...]
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 8, generator=GENERATOR), torch.randn(4, 8, generator=GENERATOR)
ATTACKS: tuple[Attack, ...] = ()


class Two(nn.Module):
    """Two linear layers; ``body`` is what most attacks replace."""

    def __init__(self, body: Callable[[Two, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.body = nn.Linear(8, 8), nn.Linear(8, 8), body

    def forward(self, x: Tensor) -> Any:
        y = self.b(F.gelu(self.a(x))) if self.body is None else self.body(self, x)
        return y.square().mean() if isinstance(y, Tensor) else y


class Layers(nn.Module):
    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Norm(nn.Module):
    """Its statistics are others than those of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.norm(5 + 3 * torch.randn(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x))).square().mean()


def attack(name: str, guards: str, slow: bool = False) -> Callable:
    """Registers a function as an attack on the model."""

    def register(function: Callable) -> Callable:
        global ATTACKS
        ATTACKS = (*ATTACKS, Attack("model", name, guards, function, slow))
        return function

    return register


def traced(module: nn.Module, *batch: Tensor, loss_fn: Callable | None = None) -> Model:
    return trace(module, batch or (X,), loss_fn=loss_fn, training=True)


def ops(model: Model) -> list[str]:
    return [node.op for segment in model.segments for node in model.blocks[segment.block].nodes]


def as_one_device(module: nn.Module, *batch: Tensor, loss_fn: Callable | None = None) -> str:
    """The traced graph's loss and gradients against the module's own."""
    batch = batch or (X,)
    model = traced(module, *batch, loss_fn=loss_fn)
    leaves = {n: p.detach().clone().requires_grad_(p.requires_grad) for n, p in module.named_parameters()}
    buffers = {n: value.clone() for n, value in module.named_buffers()}
    found = interpret(model, {**leaves, **buffers}, dict(zip((v.name for v in model.batch), batch, strict=True)))
    output = module(batch[0]) if loss_fn is not None else module(*batch)
    expected = loss_fn(output, *batch[1:]) if loss_fn is not None else loss_in(output)
    found.backward()
    module.zero_grad()
    expected.backward()
    errors = {n: gap(leaves[n].grad, p.grad) for n, p in module.named_parameters()}
    worst = max(errors, key=lambda name: errors[name])
    with torch.no_grad():
        loss = abs(float(found - expected)) / abs(float(expected))
    return equal(max(loss, errors[worst]) < 1e-5, f"loss to {loss:.0e}, gradient of {worst} to {errors[worst]:.0e}")


def loss_in(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output.loss]
    return next(part for part in parts if part.ndim == 0)


def gap(found: Tensor | None, expected: Tensor | None) -> float:
    if found is None or expected is None:
        return 0.0 if found is expected else 1.0
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


# Modes


@attack("batch norm frozen by bn.eval()", "trained with the batch's statistics")
def frozen_norm(_: Place) -> str:
    module = Norm()
    module.norm.eval()
    before = module.norm.running_mean.clone()
    seen = as_one_device(module)
    return equal(torch.equal(before, module.norm.running_mean), seen)


@attack("a frozen batch norm on four ranks, by rows and channels", "statistics that follow the batch", slow=True)
def frozen_norm_on_ranks(_: Place) -> str:
    module = Norm()
    module.norm.eval()
    plan = parallelize_alone(module, "1x4 cpu", (X,), parallelism=Parallelism(dp=2, tp=2, pp=1))
    found = plan.verify(raises=False)
    return equal(found.passed, str(found).splitlines()[0])


@attack("dropout.eval() in a model that trains", "elements are dropped all the same")
def quiet_dropout(_: Place) -> str:
    module = Layers(2)
    for layer in module.layers:
        layer[1].eval()
    return as_one_device(module)


@attack("one layer of six in eval mode", "folded with its neighbours, and trained like them")
def one_layer_apart(_: Place) -> str:
    module = Layers()
    module.layers[4].eval()
    dropped = ops(traced(module)).count("autoplan.dropout")
    return equal(dropped == 5, f"{dropped} of 6 layers drop")


@attack("a model as from_pretrained returns it, wholly in eval mode", "trained without dropout, or switched unsaid")
def wholly_evaluated(_: Place) -> str:
    model = traced(Layers().eval())
    told = [note for note in model.notes if "eval mode" in note]
    return equal(ops(model).count("autoplan.dropout") == 6 and bool(told), "; ".join(told) or "nothing is said")


@attack("the root in eval mode, a part of it in training", "all of it switched to training")
def root_evaluated(_: Place) -> str:
    module = Layers().eval()
    module.layers[0].train()
    return equal(ops(traced(module)).count("autoplan.dropout") == 1, "1 of 6 layers drops")


@attack("planning, then looking at the model's modes and its loss'", "the user's modules were switched")
def modes_stay(_: Place) -> str:
    module, loss = Norm(), nn.MSELoss().eval()
    module.norm.eval()
    before = [m.training for m in module.modules()]
    trace(module, (X,), training=False)
    trace(Scores(), (X, Y), loss_fn=loss, training=True)
    return equal([m.training for m in module.modules()] == before and not loss.training, "modes as they were")


class Scores(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))


@attack("verify a module with values and modes of its own", "compared with one that was drawn anew and switched")
def own_reference(_: Place) -> str:
    module = Layers(2)
    module.layers[0].eval()
    found = reference_of(module, seed=3)
    same = all(torch.equal(f, p.double()) for f, p in zip(found.parameters(), module.parameters(), strict=True))
    modes = [m.training for m in found.modules()] == [m.training for m in module.modules()]
    return equal(same and modes, "the reference has the module's values and modes")


@attack("a loss module that drops, in eval mode", "its mode is forced to training")
def evaluated_loss(_: Place) -> str:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return (self.drop(output) - target).square().mean()

    return as_one_device(Scores(), X, Y, loss_fn=Loss().eval())


# Hooks


def doubled(gradient: Tensor) -> Tensor:
    return 2 * gradient


def hooked(register: Callable[[Two], object]) -> Two:
    module = Two()
    register(module)
    return module


HOOKS: tuple[tuple[str, Callable[[Two], object], tuple[str, ...]], ...] = (
    ("a hook on a parameter's gradient", lambda m: m.a.weight.register_hook(doubled), ("doubled", "'a.weight'")),
    (
        "a hook after a parameter's gradient is accumulated",
        lambda m: m.b.bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2)),
        ("lambda", "'b.bias'"),
    ),
    (
        "a backward hook of a module",
        lambda m: m.b.register_full_backward_hook(lambda _, given, __: (2 * given[0],)),
        ("lambda", "module 'b'"),
    ),
    (
        "a backward pre-hook of a module",
        lambda m: m.a.register_full_backward_pre_hook(lambda _, given: (2 * given[0],)),
        ("lambda", "module 'a'"),
    ),
    (
        "a hook that renames the state dict",
        lambda m: m.register_state_dict_post_hook(renaming),
        ("renaming", "the root", "state dict"),
    ),
)


def renaming(_: nn.Module, state: dict[str, Tensor], prefix: str, __: object) -> None:
    state[f"{prefix}c.weight"] = state.pop(f"{prefix}a.weight")


def hook_attack(register: Callable[[Two], object], words: tuple[str, ...]) -> Callable[[Place], str]:
    return lambda _: refused(lambda: traced(hooked(register)), *words)


for hook_name, hook_register, hook_words in HOOKS:
    attack(hook_name, "left out without a word")(hook_attack(hook_register, hook_words))


@attack("a hook on every module of the process", "left out of the program without a word")
def global_hook(_: Place) -> str:
    handle = process_wide.register_module_full_backward_hook(lambda _, given, __: given)
    try:
        return refused(lambda: traced(Two()), "every module of this process")
    finally:
        handle.remove()


@attack("planning within saved_tensors_hooks", "gradients without what they do")
def saved_around(_: Place) -> str:
    with saved_tensors_hooks(doubled, lambda t: t):
        return refused(lambda: traced(Two()), "doubled", "saved")


@attack("a forward hook that changes what a module returns", "left out, or run twice")
def forward_hook(_: Place) -> str:
    module = hooked(lambda m: m.a.register_forward_hook(lambda _, __, out: out.tanh() * 3))
    notes = traced(module).notes
    return equal(any("forward hooks are traced" in note for note in notes), as_one_device(module))


@attack("a forward hook that reads another layer's weight", "a constant in place of the weight")
def reaching_hook(_: Place) -> str:
    module = hooked(lambda m: m.a.register_forward_hook(lambda _, __, out: out * m.b.bias))
    return refused(lambda: traced(module), "parameter b.bias", "closure")


# Forwards that do more than compute


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
    ("weight.data in forward", "the weight's first value for ever", Bodies.past_the_gradient, {}, (".detach()",)),
    ("weight.data.clamp_() in forward", "a weight that isn't clamped", Bodies.clamping, {}, (".data",)),
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


@attack("a buffer that forward replaces", "its first value for ever")
def replaced_buffer(_: Place) -> str:
    module = Two(Bodies.replacing)
    module.register_buffer("steps", torch.ones(()))
    return refused(lambda: traced(module), "steps")


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


@attack("planning within torch.no_grad", "a straight-through function isn't looked at")
def planned_without_gradients(_: Place) -> str:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    with torch.no_grad():
        traced(Two())
        return refused(lambda: traced(Two(lambda m, x: m.b(Straight.apply(m.a(x))))), "Straight")


# Tensors that are none of the model's, or are so twice


@attack("a method patched by a closure over the layer", "the layer's weights become constants")
def patched(_: Place) -> str:
    module = Two()
    original = module.a.forward
    module.a.forward = lambda x: original(x) * 2  # type: ignore[method-assign]
    return refused(lambda: traced(module), "parameter a.weight", "patched")


@attack("a method patched over a frozen layer of one number", "the number is written down, and weights aren't read")
def patched_frozen(_: Place) -> str:
    module = Two()
    module.a.requires_grad_(False)
    nn.init.constant_(module.a.weight, 0.5)
    nn.init.constant_(module.a.bias, 0.5)
    original = module.a.forward
    module.a.forward = lambda x: original(x) * 2  # type: ignore[method-assign]
    return refused(lambda: traced(module), "a.weight", "past the module")


@attack("weights tied by their .data", "each trained by itself")
def tied_by_data(_: Place) -> str:
    module = Two()
    module.b.weight = nn.Parameter(module.a.weight.data)
    return refused(lambda: traced(module), "a.weight and b.weight", "share memory")


@attack("parameters in a plain list", "constants in the program")
def in_a_list(_: Place) -> str:
    module = Two(lambda m, x: m.b(m.a(x)) * m.scales[0])  # type: ignore[index]
    module.scales = [nn.Parameter(torch.ones(8))]  # type: ignore[assignment]
    return refused(lambda: traced(module), "no parameter of the model")


@attack("a loss with a trainable temperature", "a traceback, or a constant")
def trained_loss(_: Place) -> str:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return (output / self.temperature - target).square().mean()

    return refused(lambda: traced(Scores(), X, Y, loss_fn=Loss()), "no parameter of the model")


@attack("CrossEntropyLoss(weight=...)", "a traceback")
def weighted_loss(_: Place) -> str:
    labels = torch.tensor([1, 0, 7, 3])
    return as_one_device(Scores(), X, labels, loss_fn=nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2, 8)))


@attack("a lazy layer", "a traceback")
def lazy(_: Place) -> str:
    module = Two()
    module.a = nn.LazyLinear(8)  # type: ignore[assignment]
    return refused(lambda: traced(module), "a.weight", "lazy")


@attack("a model in DataParallel", "names that no checkpoint has")
def wrapped(_: Place) -> str:
    return refused(lambda: traced(nn.DataParallel(Two())), "DataParallel", ".module")


@attack("spectral norm, whose buffers each forward changes", "frozen at their first values")
def spectral(_: Place) -> str:
    return refused(lambda: traced(hooked(lambda m: parametrizations.spectral_norm(m.a))), "forward changes it in place")


@attack("weight norm as a parametrization", "the weight alone is trained")
def weight_norm(_: Place) -> str:
    return as_one_device(hooked(lambda m: parametrizations.weight_norm(m.a)))


# Inputs and outputs


@attack("a float64 batch for a float32 model", "cast without a word; torch refuses it")
def wide_batch(_: Place) -> str:
    return refused(lambda: check_dtypes(Two(), (X.double(),), None, "fp32"), "example_inputs[0]", "float64", "float32")


@attack("a float16 batch for a float32 model in bf16-mixed", "cast without a word; torch refuses it")
def narrow_batch(_: Place) -> str:
    call = lambda: parallelize_alone(Two(), "1x2 cpu", {"x": X.half()}, parallelism="ddp")  # noqa: E731
    return refused(call, "example_inputs['x']", "float16")


@attack("a forward that returns (logits, loss)", "the logits are trained on, or refused")
def logits_and_loss(_: Place) -> str:
    return as_one_device(Two(lambda m, x: (m.a(x), m.b(m.a(x)).square().mean())))


@attack("a dict with 'loss' beside another scalar", "the other one is trained on")
def named_loss(_: Place) -> str:
    def body(m: Two, x: Tensor) -> dict[str, Tensor]:
        return {"loss": m.b(m.a(x)).square().mean(), "penalty": m.a.weight.sum()}

    return as_one_device(Two(body))


@attack("two scalars, either of which could be the loss", "one of them is taken")
def two_losses(_: Place) -> str:
    module = Two(lambda m, x: (m.b(m.a(x)).square().mean(), m.a.weight.square().sum()))
    return refused(lambda: traced(module), "output[0], output[1]")


@attack("targets missing: (logits, None)", "a traceback, or the logits trained on")
def no_targets(_: Place) -> str:
    return refused(lambda: traced(Two(lambda m, x: (m.a(x), None))), "no loss", "targets are missing")


@attack("a loss for each row", "their sum or their first is trained on")
def loss_per_row(_: Place) -> str:
    module = Two(lambda m, x: SimpleNamespace(loss=m.a(x).square().mean(1)))
    return refused(lambda: traced(module), "its loss has shape (4,)")


@attack("a loss that is detached", "a program that trains nothing")
def detached_loss(_: Place) -> str:
    return refused(lambda: traced(Two(lambda m, x: (m.a(x).mean().detach(),))), "carries no gradient")


@attack("every parameter frozen", "a program that trains nothing")
def all_frozen(_: Place) -> str:
    return refused(lambda: traced(Two().requires_grad_(False)), "no parameter is trainable")


FILE = """
from torch import nn
def make_model(): return nn.Linear(8, 4)
def example_inputs(): import torch; return torch.zeros(8, 8), torch.zeros(8, 4)
def scaled(output, target): return 3 * (output - target).square().mean()
"""


def command(place: Place, loss: str) -> list[str]:
    (place.folder / "file.py").write_text(FILE)
    model = f"{place.folder / 'file.py'}:make_model"
    return ["plan", "--model", model, "--cluster-spec", "1x2 cpu", "--effort", "fast", "--loss", loss]


@attack("--loss with a name that isn't quite one", "a traceback")
def misspelt_loss(place: Place) -> str:
    return refused_command(command(place, "crossentropy"), "did you mean cross_entropy?")


@attack("--loss with a function that is no loss", "planned with it")
def no_loss_at_all(place: Place) -> str:
    return refused_command(command(place, "relu"), "--loss relu")


@attack("--loss with a function that its file lacks", "a traceback")
def lost_loss(place: Place) -> str:
    return refused_command(command(place, f"{place.folder / 'file.py'}:lost"), "the file has no 'lost'")


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
