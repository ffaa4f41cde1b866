"""What the model computes with, and what it returns: tensors that aren't its own, batches, losses."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from autoplan.trace.checks.input_dtypes import check_dtypes
from tests.attacks.attack import Attack, Place, refused, refused_command, registering
from tests.attacks.traced_model import Scores, Two, X, Y, as_one_device, hooked, traced
from tests.support.planning import parallelize_alone

ATTACKS: list[Attack] = []
attack = registering("model", ATTACKS)


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


@attack("a model that torch.compile returned", "names that no checkpoint has")
def compiled(_: Place) -> str:
    return refused(lambda: traced(torch.compile(Two())), "torch.compile", "its ._orig_mod")


@attack("spectral norm, whose buffers each forward changes", "frozen at their first values")
def spectral(_: Place) -> str:
    return as_one_device(hooked(lambda m: parametrizations.spectral_norm(m.a)))


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
