"""What a loop asks of its own module, or says of a save, and a program doesn't do: refused with its name, or told."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from autoplan.errors import InputsError
from autoplan.runtime.program import Program
from autoplan.trace.checks.hooks import check_gradient_hooks, listed, own_hooks

WHATEVER = ("is_main_process", "save_function", "token")
"""What loops say of who saves, and how: a program's ranks know."""
USUAL: Mapping[str, object] = {
    "push_to_hub": False, "variant": None, "safe_serialization": True, "save_peft_format": True,
    "save_original_format": True, "distributed_checkpoint": False, "max_shard_size": None,
}  # fmt: skip
"""Arguments of a save, with the values under which it writes what a program writes."""
INSTEAD = {
    "max_shard_size": "call program.save_weights(folder, max_file_bytes=…)",
    "push_to_hub": "save, and upload the folder by huggingface_hub",
    "state_dict": "call program.save_weights(folder, dtype=…), or save these values by safetensors",
}


class AsPlanned:
    """The user's module beside the program that trains in its place.

    Told on stderr at once are parameters that the module would train and the plan doesn't, and forward hooks, which
    ran when the plan was traced. TraceError for a hook on gradients.
    """

    def __init__(self, program: Program, module: nn.Module) -> None:
        check_gradient_hooks(module)
        self.before = [(name, p, p.requires_grad) for name, p in module.named_parameters()]
        if program.rank == 0:
            for line in (*untrained(program, self.before), *unhooked(module)):
                print(f"autoplan: {line}", file=sys.stderr, flush=True)

    def check(self) -> None:
        """InputsError for a parameter that was frozen or unfrozen since: the program goes on as it was planned."""
        for name, parameter, trained in self.before:
            if parameter.requires_grad is not trained:
                raise refreezing(name, parameter.requires_grad)


def untrained(program: Program, parameters: Iterable[tuple[str, nn.Parameter, bool]]) -> list[str]:
    trained: dict[str, bool] = {}
    for stored in program.spec.lowered.parameters:
        for each in stored.members or (stored,):
            for name in (each.source, *each.aliases):
                trained[name] = trained.get(name, False) or stored.trainable
    found = [name for name, _, wanted in parameters if wanted and not trained.get(name, True)]
    told = "when it was planned it was frozen, or no gradient reached it. To train it, plan again"
    return [f"the plan doesn't train {listed(found)}, which requires gradients: {told}"] if found else []


def unhooked(module: nn.Module) -> list[str]:
    own = [f"{name} of {path or 'the root'}" for path, name in own_hooks(module)]
    told = "what they compute is in the program only if they were there when it was planned"
    return [f"forward hooks aren't called: {listed(own)}; {told}"] if own else []


def refreezing(name: str, trained: bool) -> InputsError:
    cause = "the plan says what is trained, and goes on with it"
    return InputsError(f"requires_grad={trained} of {name}", cause, "set it on the model, and plan again")


def check_save(said: Mapping[str, object], adapters: bool) -> None:
    """InputsError for an argument of a save that would have no effect.

    adapters  whether peft's own method writes, which reads what else is said
    """
    for name, value in said.items():
        usual = name in WHATEVER or adapters or (name in USUAL and value == USUAL[name])
        if not usual and name != "state_dict":
            cause = "a plan's program writes its own weights, and this has no effect on them"
            raise InputsError(f"save_pretrained({name}={value!r})", cause, INSTEAD.get(name, "leave it out"))


class Gathered:
    """The state that a loop was last given, to know it again: it is what a save writes anyway."""

    def __init__(self) -> None:
        self.values: dict[str, weakref.ref[Tensor]] = {}  # weak: a loop that drops the state frees it
        self.step = 0

    def give(self, values: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        self.values, self.step = {name: weakref.ref(value) for name, value in values.items()}, step
        return values

    def check(self, given: object, step: int) -> None:
        """InputsError for a state that is another than the program's of now."""
        if not given:
            return
        cause = "it isn't what the prepared model's state_dict gave, and the program's own values would be written"
        known = isinstance(given, Mapping) and given.keys() == self.values.keys()
        if known and all(value is self.values[name]() for name, value in given.items()):  # type: ignore[attr-defined]
            if step == self.step:
                return
            cause = f"it was gathered after step {self.step}, and step {step} has been taken since"
        raise InputsError("save_pretrained(state_dict=…)", cause, INSTEAD["state_dict"])
