"""A fake accelerator: tensors on "gpu" have shapes, dtypes and storages of the right size, but no memory and no values.

Tensors on the CPU stay real, so that the host's code runs as it does beside a real device.

Most of torch's private interfaces that a rehearsal needs are here. No public one serves: torch's backend for devices
written in Python (``_setup_privateuseone_for_python_backend``) is experimental, and nothing else lets autograd run on a
device for which the installed torch has no kernels. (Fake tensors on "cuda" abort in a build without CUDA.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._meta_registrations import _create_grouped_mm_output_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from autoplan.errors import RehearsalError
from autoplan.rehearsal.device.streams import NAME, FakeDevice, Listener


class _Dispatch(TorchDispatchMode):
    """Runs operators on the device's tensors without values, all others as they are."""

    def __init__(self, listener: Listener, fake: FakeTensorMode | None = None) -> None:
        super().__init__()
        self.listener = listener
        self.fake = fake or FakeTensorMode(allow_non_fake_inputs=True)
        self.seen: dict[object, tuple] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.prim.device.default:
            return args[0].fake_device
        kwargs = kwargs or {}
        if function is torch.ops.prims.device_put.default:  # a constant that a compiled graph brings to the device
            function, args, kwargs = torch.ops.aten._to_copy.default, args[:1], {"device": args[1]}
        device = kwargs.get("device")
        there = device is not None and torch.device(device).type == NAME
        if function is torch.ops.aten.is_pinned.default:
            return True  # memory of the host that is pinned is like other memory here
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # it goes on with its local tensors, or waits for them; these come here again
        if (FakeTensor not in types and not there) or torch._C._get_dispatch_mode(_FAKE) is not None:
            return function(*args, **kwargs)  # the host's, or a trial of DTensor's, which infers shapes by a fake mode
        own = OPDEFS.get(f"{function.namespace}::{function._opname}") if function.namespace in _PYTHON else None
        if own is not None:  # what it does inside, not the shapes that it says it makes
            with self:
                return own._init_fn(*args, **kwargs)
        if FakeTensor not in types and args and isinstance(args[0], Tensor) and function._can_decompose():
            with self:  # `to`, of a tensor in the host's memory: what it consists of is a copy
                return function.decompose(*args, **kwargs)
        if function in _COPIES:
            return self.copy(function, types, args, kwargs)
        if function is torch.ops.aten._local_scalar_dense.default:
            return self.value_of(args[0])
        # what is waited for is returned as it is, though torch infers a tensor of its own
        waits = function is torch.ops._c10d_functional.wait_tensor.default
        result = args[0] if waits else self.shapes(function, types, args, kwargs)
        self.listener.ran(function, args, kwargs, result)
        return result

    def shapes(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operator's results. Where it makes new tensors of shapes that were seen before, theirs are taken from
        then: a step repeats the same few hundred calls in each layer and microbatch."""
        if any(argument.alias_info is not None for argument in function._schema.arguments):
            return self.fake.__torch_dispatch__(function, types, args, kwargs)
        key = (function, _described(args), *((name, _described(value)) for name, value in kwargs.items()))
        known = self.seen.get(key)
        if known is None:
            result = self.inferred(function, types, args, kwargs)
            self.seen[key] = _made(result, args)
            return result
        if known is _OTHER:
            return self.fake.__torch_dispatch__(function, types, args, kwargs)
        made = [FakeTensor(self.fake, torch.empty_strided(*form, device="meta", dtype=dtype), device)
                for form, dtype, device in known]  # fmt: skip
        return made[0] if len(function._schema.returns) == 1 else tuple(made)

    def inferred(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operator's results. Torch infers grouped products in bfloat16 alone, though its kernels take others."""
        if function is not torch.ops.aten._grouped_mm.default or args[0].dtype == torch.bfloat16:
            return self.fake.__torch_dispatch__(function, types, args, kwargs)
        with self.fake:
            offsets = args[2] if len(args) > 2 else kwargs.get("offs")
            return _create_grouped_mm_output_tensor(args[0], args[1], offsets, args[0].dtype)

    def copy(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A copy, which may lead from the host's memory to the device's, or back."""
        onto = function is torch.ops.aten.copy_.default
        source = args[1] if onto else args[0]
        here = _is_on_device(source)
        there = _is_on_device(args[0]) if onto else _leads_to_device(kwargs, here)
        if here == there:
            same = self.fake.__torch_dispatch__(function, types, args, kwargs)
            self.listener.ran(function, args, kwargs, same)
            return same
        waits = args[2] if onto and len(args) > 2 else kwargs.get("non_blocking", False)
        result: Any
        if onto:
            result = args[0]  # real memory of the host, where what comes has no values, or the device's
        elif there and not isinstance(source, FakeTensor):
            # not by the fake mode, which would look at a small tensor's values and compute with them
            like = torch.empty_like(source, device="meta", dtype=kwargs.get("dtype") or source.dtype)
            with self.fake:
                result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=f"{NAME}:0")
        else:
            result = self.fake.__torch_dispatch__(function, types, args, kwargs)
        self.listener.copied(source, result, to_device=there, blocking=not waits)
        return result

    def value_of(self, x: Tensor) -> int | float | bool:
        """What the host is told that asks for a value: none is known, so one that stands for "all is well"."""
        self.listener.stopped("item")
        return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1


_OTHER: tuple = ("not of the kind that is remembered",)


def _described(value: Any) -> object:
    """What an operator's shapes follow from, of one of its arguments."""
    if isinstance(value, FakeTensor):
        return value.shape, value.stride(), value.dtype, value.fake_device
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return type(value), value


def _made(result: Any, args: Any) -> tuple:
    """Size, stride, dtype and device of each result; ``_OTHER`` where one is no new tensor on the device."""
    results = result if isinstance(result, tuple) else (result,)
    given = {id(x.untyped_storage()) for x in tree_leaves(args) if isinstance(x, FakeTensor)}
    if any(isinstance(x, FakeTensor) and id(x.untyped_storage()) in given for x in results):
        return _OTHER
    if not all(type(x) is FakeTensor and x.layout is torch.strided for x in results):
        return _OTHER
    return tuple(((tuple(x.shape), x.stride()), x.dtype, x.fake_device) for x in results)


_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PYTHON = ("autoplan", "_c10d_functional")  # of operators that are Python: torch's makes a tensor that waits for itself
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def _is_on_device(x: Tensor) -> bool:
    return isinstance(x, FakeTensor) and x.fake_device.type == NAME


def _leads_to_device(kwargs: dict, here: bool) -> bool:
    device = kwargs.get("device")
    return here if device is None else torch.device(device).type == NAME


def register() -> FakeDevice:
    """Makes "gpu" known to torch, for this process and once; RehearsalError where another device has its place."""
    if torch._C._get_privateuse1_backend_name() == NAME:
        return torch.get_device_module(NAME)
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise RehearsalError(
            f"torch {torch.__version__}", "it has no devices written in Python", "rehearse with torch 2.11 or later"
        )
    if torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        raise RehearsalError(
            f"a machine with {found}",
            "torch lets no second accelerator in beside it",
            "set CUDA_VISIBLE_DEVICES='' TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        )
    device = FakeDevice()
    setup(NAME, backend_module=device)
    device.library = _whole_operators()
    return device


def _whole_operators() -> torch.library.Library:
    """Operators with kernels of their own that torch takes apart on a device without: here they are to stay whole.

    What is registered never runs: the mode takes the operator before.
    """
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has(name, "CompositeImplicitAutograd") and has(name, "CPU"):
            library.impl(name.removeprefix("aten::"), _never, "PrivateUse1")
    return library


def _never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("an operator of the fake device outside of its mode")


@contextmanager
def fake_device(listener: Listener) -> Iterator[FakeDevice]:
    """Within it the current accelerator is a fake one, which tells ``listener`` all that it is asked."""
    device = register()
    device.restart()
    device.listener = listener
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        listener.resized(storage)
        return result

    with ExitStack() as stack:
        for target, name, value in (
            (torch.UntypedStorage, "resize_", resized),  # fully_shard frees and takes memory so: no operator tells
            (torch, "Stream", device.Stream),
            (torch, "Event", device.Event),
            (torch.accelerator, "current_stream", device.current_stream),
            (torch.accelerator, "synchronize", device.synchronize),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(_lifted())
        stack.enter_context(_Dispatch(listener))
        yield device


class _Nobody:
    """A listener who hears nothing."""

    def ran(self, function: Any, args: tuple, kwargs: dict, result: Any) -> None: ...
    def copied(self, source: Tensor, target: Tensor, *, to_device: bool, blocking: bool) -> None: ...
    def joined(self, stream: int, other: int) -> None: ...
    def stopped(self, what: str) -> None: ...
    def resized(self, storage: torch.UntypedStorage) -> None: ...
    def fused(self, name: str, given: Sequence[Any], made: Sequence[Any]) -> None: ...


def listener() -> Listener:
    """Who is told what runs on the fake device just now."""
    return next(mode.listener for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, _Dispatch))


def dispatching() -> bool:
    """Whether operators on the fake device run under its mode just now."""
    return any(isinstance(mode, _Dispatch) for mode in _get_current_dispatch_mode_stack())


def unheard(given: Sequence[Any]) -> TorchDispatchMode:
    """A mode in which these tensors' device runs operators that nobody is told of."""
    fake = next(x.fake_mode for x in tree_leaves(given) if isinstance(x, FakeTensor))
    return _Dispatch(_Nobody(), fake)


@contextmanager
def _lifted() -> Iterator[None]:
    """Constants that a program writes down (``torch.tensor(…, device=…)``) are made on the CPU, and copied by an
    operator that a dispatch mode sees, as FakeTensorMode has it."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
