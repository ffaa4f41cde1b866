"""Runs a recipe, on each rank of a program: bit for bit what the constructor would have made, one parameter at a time.

Random numbers come in sequence, so every draw is run, also those that are overwritten later or belong to parameters
that nobody wants; of these a piece at a time exists. A tensor exists from the first step whose values last until it is
handed out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from autoplan.ir.graph import Argument, Ref, walk_refs
from autoplan.ir.start import LITERAL, RESTORE, SAVE, SEED, TRUNCATED, InitRecipe, Step, View
from autoplan.trace.builder import torch_argument
from autoplan.trace.initialise.draws import IN_ORDER, pass_over, truncated_normal_

OVERWRITES = (
    "uniform_", "normal_", "zero_", "fill_", "copy_", "random_", "bernoulli_", "trunc_normal_", "exponential_",
    "log_normal_", "geometric_", "cauchy_",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Which steps run for their values, and what is done with after each: tensors to hand out, tensors to drop."""

    needed: tuple[bool, ...]
    done: Mapping[int, tuple[str, ...]]
    dropped: Mapping[int, tuple[str, ...]]


def replay(recipe: InitRecipe, seed: int, names: Sequence[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, whole tensor) of each parameter and buffer, or of those named, as their values become final.

    Equal, bit for bit, to what the constructor makes on one CPU after ``torch.manual_seed(seed)``. torch's own
    generator is left alone. What the recipe is missing is not among them.
    """
    wanted = {name: source for name, source in recipe.tensors if names is None or name in names}
    views = {view.name: view for view in recipe.views}
    schedule = plan(recipe, views, wanted)
    draws = any(step.random for step, needed in zip(recipe.steps, schedule.needed, strict=True) if needed)
    machine = Machine(recipe, views, torch.Generator().manual_seed(seed))
    for index, step in enumerate(recipe.steps):
        if schedule.needed[index]:
            machine.run(step)
        elif step.random and draws:
            machine.draw(step)
        done, dropped = schedule.done.get(index, ()), schedule.dropped.get(index, ())
        for name in done:
            yield name, machine.hand_out(wanted[name], last=wanted[name] in dropped and len(done) == 1)
        for root in dropped:
            machine.tensors.pop(root, None)


def plan(recipe: InitRecipe, views: Mapping[str, View], wanted: Mapping[str, str]) -> Schedule:
    """From the last step to the first: a step is needed if a wanted value passes through what it writes."""
    last: dict[str, int] = {}
    done: dict[int, tuple[str, ...]] = {}
    live: set[str] = set()
    final = {root_of(step.out, views): index for index, step in enumerate(recipe.steps)}  # the last that writes
    for name, source in wanted.items():
        root = root_of(source, views)
        done[final[root]] = (*done.get(final[root], ()), name)
    handed = {index: {root_of(wanted[name], views) for name in names} for index, names in done.items()}
    needed = [False] * len(recipe.steps)
    for index in range(len(recipe.steps) - 1, -1, -1):
        step = recipe.steps[index]
        for root in handed.get(index, ()):
            live.add(root)
            last.setdefault(root, index)
        root = root_of(step.out, views)
        if root not in live:
            continue
        needed[index] = True
        reads = {root_of(ref.name, views) for ref in walk_refs((step.args, step.kwargs))}
        if whole_write(step, views):
            live.discard(root)
            reads.discard(root)
        for read in reads:
            live.add(read)
            last.setdefault(read, index)
    dropped: dict[int, tuple[str, ...]] = {}
    for root, index in last.items():
        dropped[index] = (*dropped.get(index, ()), root)
    return Schedule(tuple(needed), done, dropped)


def is_random(recipe: InitRecipe, name: str) -> bool:
    """Whether any random number enters what a recipe makes of one parameter or buffer."""
    wanted = {key: source for key, source in recipe.tensors if key == name}
    needed = plan(recipe, {view.name: view for view in recipe.views}, wanted).needed
    return any(step.random for step, runs in zip(recipe.steps, needed, strict=True) if runs)


def in_place(step: Step) -> bool:
    return step.op != LITERAL and (step.op.split(".")[1].endswith("_") or "out" in dict(step.kwargs))


def whole_write(step: Step, views: Mapping[str, View]) -> bool:
    """Whether nothing of what the tensor was before is left."""
    if not in_place(step):
        return True
    return step.out not in views and (step.op.split(".")[1] in OVERWRITES or "out" in dict(step.kwargs))


def root_of(name: str, views: Mapping[str, View]) -> str:
    while name in views:
        name = views[name].source
    return name


class Machine:
    """The tensors that exist, and the generator they are drawn from."""

    def __init__(self, recipe: InitRecipe, views: Mapping[str, View], generator: torch.Generator) -> None:
        self.views = views
        self.made = {step.out: (step.shape, step.dtype) for step in reversed(recipe.steps) if step.out not in views}
        self.generator = generator
        self.tensors: dict[str, torch.Tensor] = {}
        self.states: dict[str, torch.Tensor] = {}

    def value(self, name: str) -> torch.Tensor:
        """A tensor, or a view of one."""
        if name not in self.views:
            return self.tensors[name]
        view = self.views[name]
        args, kwargs = map(self.real, view.args), {key: self.real(value) for key, value in view.kwargs}
        return packet(view.op)(self.value(view.source), *args, **kwargs)

    def hand_out(self, name: str, last: bool) -> torch.Tensor:
        """A tensor of its own: the one that is held, if nothing else will read it, else a copy."""
        if last and name in self.tensors:
            value = self.tensors[name]
            if value.is_contiguous():
                return value
        return self.value(name).clone(memory_format=torch.contiguous_format)

    def real(self, argument: Argument) -> object:
        return torch_argument(argument, lambda ref: self.value(ref.name))

    def run(self, step: Step) -> None:
        if step.op == LITERAL:
            values, shape, dtype = map(self.real, step.args)
            assert isinstance(dtype, torch.dtype) and isinstance(shape, list)
            self.tensors[step.out] = torch.tensor(values, dtype=dtype).reshape(shape)
            return
        if in_place(step) and step.out not in self.views and step.out not in self.tensors:
            self.tensors[step.out] = torch.empty(step.shape, dtype=getattr(torch, step.dtype))
        result = self.call(step, [self.real(arg) for arg in step.args])
        if not in_place(step):
            self.tensors[step.out] = result if step.result < 0 else result[step.result]

    def draw(self, step: Step) -> None:
        """Runs a random step for the numbers it takes alone: a piece at a time, or in a tensor that is dropped."""
        if step.op in (SEED, SAVE, RESTORE):
            self.turn(step)
            return
        if step.op in IN_ORDER and step.out not in self.views and not step.kwargs:
            bounds = tuple(self.real(arg) for arg in step.args[1:])
            pass_over(step.op, math.prod(step.shape), getattr(torch, step.dtype), bounds, self.generator)
            return
        root = root_of(step.out, self.views)
        held = self.tensors.pop(root, None)
        if in_place(step):
            shape, dtype = self.made[root]
            self.tensors[root] = torch.empty(shape, dtype=getattr(torch, dtype))
        self.call(step, [self.stand_in(argument, step) for argument in step.args])
        self.tensors.pop(root, None)
        if held is not None:
            self.tensors[root] = held

    def turn(self, step: Step) -> None:
        """Sets the generator to a seed or to a state that it had before, or keeps the state that it has."""
        (value,) = step.args
        if step.op == SEED:
            assert isinstance(value, int)
            self.generator.manual_seed(value)
        elif step.op == SAVE:
            self.states[str(value)] = self.generator.get_state()
        else:
            self.generator.set_state(self.states[str(value)])

    def stand_in(self, argument: Argument, step: Step) -> object:
        """An argument of a step whose result is dropped: for tensors but the one written to, any of its shape."""
        if isinstance(argument, Ref) and argument.name != step.out:
            return torch.zeros(step.shape, dtype=getattr(torch, step.dtype))
        return self.real(argument)

    def call(self, step: Step, args: Sequence[object]) -> torch.Tensor:
        kwargs = {key: self.real(value) for key, value in step.kwargs}
        if step.random:
            kwargs["generator"] = self.generator
        with torch.no_grad():
            return packet(step.op)(*args, **kwargs)


def packet(op: str) -> Callable[..., torch.Tensor]:
    """The operator whatever its overload: a generator among the arguments chooses another."""
    if op == TRUNCATED:
        return truncated_normal_
    namespace, name, _ = op.split(".")
    return getattr(getattr(torch.ops, namespace), name)
