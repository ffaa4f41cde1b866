"""The model as it was handed over: its modes, its hooks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as process_wide

from autoplan import Parallelism
from autoplan.trace.pipeline import trace
from autoplan.verify.reference import reference_of
from tests.attacks.attack import Attack, Place, equal, refused, registering
from tests.attacks.traced_model import Layers, Norm, Scores, Two, X, Y, as_one_device, doubled, hooked, ops, traced
from tests.support.planning import parallelize_alone

ATTACKS: list[Attack] = []
attack = registering("model", ATTACKS)


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
