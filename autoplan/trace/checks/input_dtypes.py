"""Floating inputs of another dtype than the model's: refused where torch refuses them on one device.

A program casts what it is fed to the dtype that it computes in, so a batch in float64 would train a model in float32
that can't even be run on it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator; no public alias

from autoplan.errors import InputsError
from autoplan.trace import huggingface
from autoplan.trace.batch_binding import Inputs, LossFn, WithLoss, bind
from autoplan.trace.builder import dtype_name
from autoplan.trace.passes.precision import COMPUTE
from autoplan.trace.repeats.copying import fake_copy, fake_like, fake_mode

UNMIXED = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "convolution",
    "scaled_dot_product_attention",
})  # fmt: skip
"""Operators whose kernels take no operands of different dtypes; fake ones don't look at them."""
NORMS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"})
STORED = {"bf16": torch.bfloat16, "fp64": torch.float64}  # dtype of parameters by precision, else float32


def check_dtypes(model: nn.Module, inputs: Inputs, loss_fn: LossFn | None, precision: str) -> None:
    """InputsError for floating inputs that torch doesn't take beside the model's parameters.

    Let through are inputs in a dtype of the model's parameters, or in that of a precision's parameters; others are
    tried on a weightless copy of the model.
    """
    own = {p.dtype for p in model.parameters() if p.is_floating_point()}
    named = dict(inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs))
    fitting = own | {STORED.get(precision, torch.float32)}
    other = {n: t for n, t in named.items() if t.is_floating_point() and t.dtype not in fitting}
    if not other or not own or COMPUTE.get(precision) is None:
        return
    refusal = refused(model, inputs, loss_fn, None)
    fits = min(own, key=str)
    if refusal is not None and refused(model, inputs, loss_fn, fits) is None:
        name, tensor = next(iter(other.items()))
        raise InputsError(
            f"example_inputs[{name!r}] of {dtype_name(tensor.dtype)}",
            f"the model is of {dtype_name(fits)}, and torch refuses to run it on that: {refusal}",
            f"give it in {dtype_name(fits)}, or the model in {dtype_name(tensor.dtype)} (model.to(...))",
        )


def stored_notes(model: nn.Module, precision: str) -> tuple[str, ...]:
    """What a report says of weights that a plan keeps in another dtype than the model holds them in."""
    kept, counted = STORED.get(precision, torch.float32), Counter[torch.dtype]()
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.requires_grad:
            counted[parameter.dtype] += parameter.numel()
    counted.pop(kept, None)
    if not counted:
        return ()
    held = counted.most_common(1)[0][0]
    own = next((f"; precision={name!r} keeps them so" for name, dtype in STORED.items() if dtype == held), "")
    return (f"the model holds weights in {dtype_name(held)}; the plan keeps them in {dtype_name(kept)}{own}",)


def refused(model: nn.Module, inputs: Inputs, loss_fn: LossFn | None, dtype: torch.dtype | None) -> str | None:
    """What torch says of the model run on these inputs in its own dtypes; None where it runs.

    dtype  of floating inputs; None: their own
    """
    binding, mode = bind(model, inputs, loss_fn), fake_mode()
    tensors = inputs.values() if isinstance(inputs, Mapping) else inputs
    batch = [fake_like(tensor, mode, None if dtype is None else dtype_name(dtype)) for tensor in tensors]
    try:
        twin = fake_copy(model, mode, None, ())
        huggingface.prepare(twin, padded=bool({"attention_mask", "position_ids"} & set(binding.forward)))
        module = WithLoss(twin, binding, loss_fn, training=False)
        with torch.inference_mode(False), torch.no_grad(), mode, Unmixed(), torch.compiler.set_stance("force_eager"):
            module(*batch)
    except InputsError:  # of what it returned: it ran
        return None
    except Exception as error:  # whatever torch or the user's code says
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


class Unmixed(TorchDispatchMode):
    """Refuses operands of different floating dtypes where real kernels do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        dtypes = {a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point()}
        wide = name in NORMS and torch.float64 in dtypes
        if len(dtypes) > 1 and (name in UNMIXED or wide):
            raise RuntimeError(f"{name} of {' and '.join(sorted(map(dtype_name, dtypes)))}")
        return func(*args, **(kwargs or {}))
