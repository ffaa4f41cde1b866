"""What a user gives to be planned: a module with its values, one without, or a function that makes one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from autoplan.errors import InputsError, WeightsError
from autoplan.ir.start import CONSTRUCTOR, FACTORY, RESETS, InitRecipe, Start
from autoplan.models.inputs import users_own
from autoplan.trace.initialise.constructor_recorder import Recorder, Unrecordable, recording
from autoplan.trace.initialise.generators import left_alone
from autoplan.trace.initialise.lifting import lifted
from autoplan.trace.initialise.making import constructed_again, constructor_recipe, recipe_of, resets_recipe
from autoplan.trace.initialise.plain import check_plain, check_shaped
from autoplan.trace.initialise.recipe_check import (
    described,
    differing,
    named_tensors,
    same_bits,
    too_large,
    with_values,
)

SEED = 0  # under which a factory's values are made, to be compared or kept: that of ``init_weights()``


@dataclass(frozen=True)
class Given:
    """The module that is traced, how its values come about, and where training starts from."""

    module: nn.Module
    recipe: InitRecipe | None
    start: Start


def check_given(model: object) -> None:
    """InputsError for what is neither a module nor callable."""
    if not isinstance(model, nn.Module) and not callable(model):
        cause = "it is no torch.nn.Module, nor a function that makes one"
        raise InputsError(f"a model of type {type(model).__name__}", cause, "give an instance of one")


def given(model: nn.Module | Callable[[], nn.Module]) -> Given:
    """What a module or a factory says of where training starts from. Generators are left as they were.

    Raises InputsError where a factory makes no module or can't be run; WeightsError where what was recorded of it
    differs from what it makes.
    """
    with left_alone():
        return of_module(model) if isinstance(model, nn.Module) else of_factory(model)


def of_module(module: nn.Module) -> Given:
    """A module holds the values that training starts from, or is on the meta device."""
    check_plain(module)
    module = lifted(module)
    tensors = named_tensors(module)
    hollow = tuple(name for name, tensor in tensors if tensor.is_meta)
    start = Start(name=type(module).__name__, stored=bool(tensors) and not hollow, unknown=hollow)
    recipe = constructor_recipe(module)
    if recipe is not None and not recipe.missing:
        start = replace(start, name=f"{start.name}(config)")
        large = too_large(module)
        if large:
            return Given(module, recipe, replace(start, recipe=CONSTRUCTOR, unknown=(), why=f"not compared: {large}"))
        other = differing(recipe, made(lambda: constructed_again(module)), SEED)
        if other is None:
            return Given(module, recipe, replace(start, recipe=CONSTRUCTOR, compared=True, unknown=()))
        start = replace(start, why=f"its constructor can't be repeated: {other} came out otherwise")
    recipe = resets_recipe(module)
    return Given(module, recipe, replace(start, recipe=RESETS if recipe.tensors else ""))


def of_factory(make: Callable[[], nn.Module]) -> Given:
    """A factory is recorded as it runs, without its weights; where these fit here it then runs with them."""
    name = name_of(make)
    check_arguments(make, name)
    twin, recipe, recorder = watched(make)
    sized = twin if twin is not None else on_meta(make)
    if sized is not None:
        check_shaped(sized)
    large = too_large(sized) if sized is not None else ""
    start = Start(name=f"{name}()", why=recorder.refused)
    if large:
        why = f"{start.why}, and {large}" if start.why else f"not compared: {large}"
        return hollow(make, name, recorder, twin, recipe, replace(start, why=why))
    module = checked(lambda: made(make), name)
    check_plain(module)
    if any(tensor.is_meta for _, tensor in named_tensors(module)):
        why = "it makes its weights on the meta device: leave that to autoplan"
        unknown = tuple(key for key, tensor in named_tensors(module) if tensor.is_meta)
        return Given(module, None, replace(start, why=why, unknown=unknown))
    if twin is None or recipe is None:
        return Given(module, None, kept(make, module, replace(start, why=start.why or "it can't be recorded")))
    compare(name, twin, recipe, module)
    return Given(module, recipe, replace(start, recipe=FACTORY, compared=True, unknown=recipe.missing))


def kept(make: Callable[[], nn.Module], module: nn.Module, start: Start) -> Start:
    """Of a factory that can't be recorded: training starts from what it made once. Another run tells whether that
    followed from the seed."""
    again = made(make)
    pairs = zip(named_tensors(again), named_tensors(module), strict=False)
    alike = described(again) == described(module) and all(same_bits(one, other) for (_, one), (_, other) in pairs)
    return replace(start, stored=bool(named_tensors(module)), seed=SEED if alike else None)


def hollow(
    make: Callable[[], nn.Module], name: str, recorder: Recorder, twin: nn.Module | None, recipe: InitRecipe | None,
    start: Start,
) -> Given:  # fmt: skip
    """A factory whose model is too large to be made here: traced without values."""
    module = on_meta(make)
    if module is None:
        if twin is None or keeps_hollow(twin, recorder):
            cause = f"its model can't be made on the meta device, and {start.why}"
            raise InputsError(f"{name}()", cause, "give an instance, made where there is room for it")
        module = with_values(twin, lambda tensor: torch.empty_like(tensor, device="meta"))
    if recipe is not None and recorder.elsewhere:
        recipe, start = None, replace(start, why="it draws from NumPy's or Python's generator, or writes through NumPy")
    if recipe is None or twin is None or described(module) != described(twin):
        return Given(module, None, replace(start, unknown=tuple(key for key, _ in named_tensors(module))))
    return Given(module, recipe, replace(start, recipe=FACTORY, unknown=recipe.missing))


def watched(make: Callable[[], nn.Module]) -> tuple[nn.Module | None, InitRecipe | None, Recorder]:
    """(the model without its values, its recipe, the record); None for what can't be had."""
    twin, recorder = None, Recorder()
    try:
        with recording() as recorder:
            twin = make()
        recipe = recipe_of(twin, recorder) if isinstance(twin, nn.Module) else None
    except Unrecordable:
        recipe = None
    except Exception as error:  # the user's, or of an operator that can't run without values: a real run tells
        twin, recipe = None, None
        recorder.refused = recorder.refused or f"recording it failed with {type(error).__name__}: {error}"
    twin = twin if isinstance(twin, nn.Module) else None
    return twin, None if recorder.refused else recipe, recorder


def compare(name: str, twin: nn.Module, recipe: InitRecipe, module: nn.Module) -> None:
    """WeightsError where a recipe doesn't give what the factory made."""
    other = differing(recipe, module, SEED) if described(twin) == described(module) else "its parameters"
    if other is not None:
        raise WeightsError(
            f"{other} of {name}()",
            "run twice under one seed, it isn't the same bit for bit: it depends on something other than torch's "
            "generator, such as NumPy's, the time, or what was made before",
            f"make it depend on torch's generator alone, or give the module: parallelize({name}(), ...)",
        )


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """The model on the CPU as torch.manual_seed(SEED) and the factory make it."""
    torch.default_generator.manual_seed(SEED)
    with torch.device("cpu"), torch.enable_grad():
        return make()


def checked(make: Callable[[], object], name: str) -> nn.Module:
    """What a factory returns, where that is a module; its own mistakes become InputsErrors that name their line."""
    module = users_own(make, f"{name}()")
    if not isinstance(module, nn.Module):
        raise InputsError(f"{name}()", f"it returns {type(module).__name__}", "return a torch.nn.Module")
    return module


def on_meta(make: Callable[[], nn.Module]) -> nn.Module | None:
    """The model without values, None where it can't be made so."""
    try:
        with torch.device("meta"):
            module = make()
    except Exception:  # whatever it does with values that aren't there
        return None
    if not isinstance(module, nn.Module):
        return None
    return module


def keeps_hollow(twin: nn.Module, recorder: Recorder) -> bool:
    """Whether a module keeps a tensor without values that is neither parameter nor buffer: it would be traced so."""
    held = [value for module in twin.modules() for key, value in vars(module).items() if not key.startswith("_")]
    leaves = torch.utils._pytree.tree_leaves(held)
    return any(isinstance(leaf, torch.Tensor) and recorder.is_hollow(leaf) for leaf in leaves)


def name_of(make: Callable) -> str:
    """What a user calls a factory."""
    if isinstance(make, partial):
        return name_of(make.func)
    name = str(getattr(make, "__qualname__", None) or getattr(make, "__name__", type(make).__name__))
    name = name.rsplit("<locals>.", 1)[-1]
    return "the function" if name == "<lambda>" else name


def check_arguments(make: Callable, name: str) -> None:
    """InputsError for a factory that can't be called without arguments."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind()
    except TypeError as error:
        remedy = f"give functools.partial({name}, ...) or a lambda that calls it"
        raise InputsError(f"{name}()", f"it is called without arguments: {error}", remedy) from None
