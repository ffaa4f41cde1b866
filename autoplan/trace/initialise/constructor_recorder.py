"""Watches a constructor, with parameters that take no memory.

What would be a large or a random tensor is *hollow*: one element, expanded to the shape. Operators on hollow tensors
are written down and not run; everything else runs for real, so that a constructor may read the values it computes
(rotary frequencies, schedules of rates). No random number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator; no public alias

from autoplan.ir.graph import Argument, DType, Ref
from autoplan.ir.start import EMPTY, LITERAL, RESTORE, SAVE, SEED, TRUNCATED, Step, View
from autoplan.trace.builder import dtype_name
from autoplan.trace.initialise.generators import Elsewhere, RecordedGenerator

LARGE = 1 << 20  # elements from which a tensor is hollow
LONGEST_LITERAL = 1 << 16  # elements that are written down
ALL_LITERALS = 1 << 18  # in all: plan.json holds them as text
OWN_GENERATOR = "it draws from a generator of its own"
MADE_EMPTY = (
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default", "aten.empty_permuted.default",
    "aten.new_empty.default", "aten.new_empty_strided.default",
)  # fmt: skip
SAME = ("aten.detach.default", "aten.alias.default")  # another tensor object of the same memory and shape
GENERATOR = {"seed": SEED, "save": SAVE, "restore": RESTORE}
PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records what is constructed under it, on the CPU. Unrecordable at its end too, whatever the constructor made of
    it; ``recorder.refused`` has the reason."""
    recorder = Recorder()
    # nn.init's functions can't be overridden from outside, and this one reads the values it draws; the function behind
    # it is private, but the one place that the public one and transformers' copy of it both go through
    name = "_no_grad_trunc_normal_"
    own = RecordedGenerator(recorder.note, recorder.refuse)
    elsewhere, state = Elsewhere(), torch.default_generator.get_state()
    try:
        with ExitStack() as stack:
            # every function of torch that seeds goes through this name, however a user imported it
            stack.enter_context(mock.patch.object(torch.random, "default_generator", own))
            if hasattr(nn.init, name):
                stack.enter_context(mock.patch.object(nn.init, name, recorder.truncated_normal))
            stack.enter_context(torch.device("cpu"))
            stack.enter_context(Reading(recorder))
            stack.enter_context(recorder)
            yield recorder
    finally:
        drawn = not torch.equal(torch.default_generator.get_state(), state)
        torch.default_generator.set_state(state)
    recorder.elsewhere |= elsewhere.drawn()
    if drawn:
        recorder.refuse("it seeds or draws from torch's generator in a way that can't be followed")
    if recorder.refused:
        raise Unrecordable(recorder.refused)


class Unrecordable(Exception):
    """The constructor reads a random value, or keeps one where it can't be followed."""


class Reading(TorchFunctionMode):
    """Refuses what reads a hollow tensor past every operator; through NumPy's view a real one may be changed unseen."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__):
            if self.recorder.is_hollow(args[0]):
                self.recorder.refuse("it reads a random value")
            self.recorder.elsewhere |= func is not torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


def key_of(tensor: torch.Tensor) -> Key:
    """Tells tensors apart, and sees through ``.data`` and nn.Parameter. The memory of recorded tensors is kept alive,
    so that no address is used twice."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class Recorder(TorchDispatchMode):
    """Writes down every operator that a model is made with.

    refused    why what was recorded is no recipe, "" where it is one
    elsewhere  whether values may come from, or go by, something that isn't recorded: NumPy's or Python's generator
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.views: dict[str, View] = {}
        self.names: dict[Key, str] = {}
        self.hollow: set[str] = set()
        self.alive: list[torch.UntypedStorage] = []
        self.refused, self.elsewhere, self.literal_elements = "", False, 0

    def refuse(self, why: str) -> NoReturn:
        """Raises, and remembers: the constructor may catch it."""
        self.refused = self.refused or why
        raise Unrecordable(why)

    def note(self, what: str, value: int | str) -> None:
        """A seed or a state of the generator, in its place among the draws."""
        out = str(value) if what == "save" else ""
        self.steps.append(Step(GENERATOR[what], out, (value,), (), True, (), "uint8"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: value for key, value in (kwargs or {}).items() if value is not None}
        if kwargs.pop("generator", torch.default_generator) is not torch.default_generator:
            self.refused = self.refused or OWN_GENERATOR  # it goes on: how large the model is, is told all the same
        op = str(func)
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        places = {t.device.type for t in tensors} | {torch.device(kwargs.get("device", "cpu")).type}
        if "meta" in places:
            return func(*args, **kwargs)
        if places != {"cpu"} and (torch.Tag.nondeterministic_seeded in func.tags or any(map(self.is_hollow, tensors))):
            self.refuse(f"it draws on {', '.join(sorted(places - {'cpu'}))}, whose random numbers are others")
        if op in SAME:
            return func(*args, **kwargs)
        if op in MADE_EMPTY:
            return self.empty(func, args, kwargs)
        returns = func._schema.returns
        if len(returns) != 1 or str(returns[0].type) != "Tensor":
            return self.other(func, op, args, kwargs, tensors)
        alias = returns[0].alias_info
        if torch.Tag.inplace_view in func.tags and self.is_hollow(args[0]):
            return self.turn(op, args, kwargs)
        if alias is not None and alias.is_write:
            return self.write(func, op, args, kwargs)
        if alias is not None:
            return self.view(func, op, args, kwargs)
        return self.make(func, op, args, kwargs, tensors)

    def truncated_normal(
        self, tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: object = None
    ) -> torch.Tensor:
        """In place of torch.nn.init's, whose number of draws depends on their values."""
        if generator not in (None, torch.default_generator):
            self.refused = self.refused or OWN_GENERATOR
        if tensor.is_meta:
            return tensor
        name = self.name(tensor)
        self.step(TRUNCATED, name, tensor, (tensor, mean, std, a, b), {}, True)
        self.hollow.add(self.root(name))
        return tensor

    def other(self, func: Any, op: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Operators that give no tensor, or several. Those that give numbers run on real values alone."""
        returns = [str(r.type) for r in func._schema.returns]
        if not any(self.is_hollow(t) for t in tensors):
            return func(*args, **kwargs)
        if set(returns) != {"Tensor"} or torch.Tag.nondeterministic_seeded in func.tags:
            self.refuse(f"{op} reads a random value")
        outs = tuple(map(self.new_hollow, on_meta(func, args, kwargs)))
        for index, out in enumerate(outs):
            self.step(op, self.names[key_of(out)], out, args, kwargs, False, index)
        return outs

    def empty(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        out = self.new_hollow(on_meta(func, args, kwargs))
        self.step(EMPTY, self.names[key_of(out)], out, (tuple(out.shape),), {"dtype": out.dtype}, False)
        return out

    def make(self, func: Any, op: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
        random = torch.Tag.nondeterministic_seeded in func.tags
        hollow = random or any(self.is_hollow(t) for t in tensors) or large(func, args, kwargs, tensors)
        out = self.new_hollow(on_meta(func, args, kwargs)) if hollow else self.new_real(func(*args, **kwargs))
        self.step(op, self.names[key_of(out)], out, args, kwargs, random)
        return out

    def write(self, func: Any, op: str, args: Any, kwargs: Any) -> torch.Tensor:
        out = kwargs.get("out", args[0])
        name = self.name(out)
        random = torch.Tag.nondeterministic_seeded in func.tags
        rest = [t for t in torch.utils._pytree.tree_leaves((args[1:], kwargs)) if isinstance(t, torch.Tensor)]
        self.step(op, name, out, args, kwargs, random)
        if random or self.is_hollow(out) or any(self.is_hollow(t) for t in rest):
            self.hollow.add(self.root(name))
        else:
            func(*args, **kwargs)
        return out

    def view(self, func: Any, op: str, args: Any, kwargs: Any) -> torch.Tensor:
        source = self.name(args[0])
        hollow = self.is_hollow(args[0])
        out = self.new_hollow(on_meta(func, args, kwargs)) if hollow else func(*args, **kwargs)
        if not hollow:
            if key_of(out) in self.names:
                return out
            self.new_real(out)
        name = self.names[key_of(out)]
        rest, named = self.arguments(args[1:]), self.keywords(kwargs)
        self.views[name] = View(name, source, op, rest, named, tuple(out.shape), dtype_name(out.dtype))
        return out

    def turn(self, op: str, args: Any, kwargs: Any) -> torch.Tensor:
        """A tensor that becomes a view of itself (t_): the object from here on stands for the view."""
        namespace, name, overload = op.split(".")
        plain = getattr(getattr(getattr(torch.ops, namespace), name.removesuffix("_")), overload)
        turned = self.view(plain, str(plain), args, kwargs)
        with torch.no_grad():
            return args[0].set_(turned)

    def step(
        self, op: str, name: str, out: torch.Tensor, args: Any, kwargs: Any, random: bool, result: int = -1
    ) -> None:
        given, named = self.arguments(args), self.keywords(kwargs)
        self.steps.append(Step(op, name, given, named, random, tuple(out.shape), dtype_name(out.dtype), result))

    def arguments(self, args: Any) -> tuple[Argument, ...]:
        return tuple(map(self.argument, args))

    def keywords(self, kwargs: Any) -> tuple[tuple[str, Argument], ...]:
        return tuple((key, self.argument(value)) for key, value in kwargs.items() if key not in PLACEMENT)

    def argument(self, value: Any) -> Argument:
        if isinstance(value, torch.Tensor):
            return Ref(self.name(value))
        if isinstance(value, (list, tuple)):
            return tuple(map(self.argument, value))
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        return value

    def name(self, tensor: torch.Tensor) -> str:
        """The tensor's name; one that no operator made is written down by its values."""
        if key_of(tensor) not in self.names:
            if tensor.is_meta:
                self.refuse("it makes its weights on the meta device")
            self.literal_elements += tensor.numel()
            if tensor.numel() > LONGEST_LITERAL or self.literal_elements > ALL_LITERALS:
                self.refuse(f"it holds {tensor.numel()} values that no operator computes")
            self.new_real(tensor)
            values = tuple(tensor.detach().flatten().tolist())
            literal = (values, tuple(tensor.shape), DType(dtype_name(tensor.dtype)))
            made = Step(LITERAL, self.names[key_of(tensor)], literal, (), False, literal[1], dtype_name(tensor.dtype))
            self.steps.append(made)
        return self.names[key_of(tensor)]

    def root(self, name: str) -> str:
        while name in self.views:
            name = self.views[name].source
        return name

    def is_hollow(self, tensor: torch.Tensor) -> bool:
        name = self.names.get(key_of(tensor))
        return name is not None and self.root(name) in self.hollow

    def new_real(self, tensor: torch.Tensor) -> torch.Tensor:
        self.alive.append(tensor.untyped_storage())
        self.names[key_of(tensor)] = f"t{len(self.names)}"
        return tensor

    def new_hollow(self, like: torch.Tensor) -> torch.Tensor:
        """One element of the dtype, expanded."""
        out = torch.zeros(1, dtype=like.dtype, device="cpu").as_strided(tuple(like.shape), (0,) * like.ndim)
        self.new_real(out)
        self.hollow.add(self.names[key_of(out)])
        return out


def large(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
    if any(t.numel() >= LARGE for t in tensors):
        return True
    sizes = args[0] if args and isinstance(args[0], (list, tuple, torch.Size)) else ()
    return all(isinstance(s, int) for s in sizes) and math.prod(sizes) >= LARGE


def meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """The result's shape and dtype; a factory is told to make it on the meta device."""
    mapped = torch.utils._pytree.tree_map(meta, tuple(args))
    named = {key: meta(value) for key, value in kwargs.items() if key not in PLACEMENT}
    if any(argument.name == "device" for argument in func._schema.arguments):
        named["device"] = torch.device("meta")
    return func(*mapped, **named)
