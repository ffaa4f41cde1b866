"""One device: the user's own module, run eagerly on the whole batch, or on one microbatch after another."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from autoplan.errors import InputsError
from autoplan.ir.graph import Model
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.trace.batch_binding import WithLoss, bind_named
from autoplan.trace.checks.modes import set_modes, wholly_evaluated
from autoplan.trace.initialise import init_model, unfilled_names
from autoplan.trace.initialise.lifting import copied
from autoplan.trace.passes.precision import widened
from autoplan.verify.compare import Run, wide
from autoplan.verify.local_ranks import RankError
from autoplan.verify.quiet import Quiet
from autoplan.verify.single import random_state

Loss = TypeVar("Loss", bound=Callable | None)
Held = TypeVar("Held", bound=nn.Module)
Found = TypeVar("Found", torch.Tensor, Run)


def reference_of(module: nn.Module, seed: int, otherwise: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """The user's module as it was handed over, its values and its modes, in float64 on the CPU; a copy. On the meta
    device it has no values, and starts as it would under the seed; ``otherwise`` has what that leaves unknown."""
    tensors = (*module.parameters(), *module.buffers())
    if any(tensor.is_meta for tensor in tensors):
        return in_double(init_model(module, seed, otherwise))
    with torch.inference_mode(False):
        return in_double(copied(module).cpu())


def in_double(module: Held) -> Held:
    """The module in float64, and in complex128 what is complex, which ``nn.Module.double`` leaves as it is."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_complex():
            tensor.data = wide(tensor.data)
    return module.double()


def drawn_values(module: nn.Module, model: Model, seed: int) -> tuple[dict[str, torch.Tensor], str]:
    """Random values for what lies on the meta device and nothing fills, and what to say of them, "" without any.

    model  what was traced of the module; what it never reads is 0
    """
    unknown = unfilled_names(module)
    if not unknown:
        return {}, ""
    drawn = random_state(model, seed)
    values = {name: drawn[name] if name in drawn else torch.zeros(()) for name in unknown}
    return values, f"from random weights, for {unknown[0]} lies on the meta device and nothing fills it"


def wide_loss(loss_fn: Loss) -> Loss:
    """A loss that is itself a module, with what it holds in float64."""
    return in_double(copy.deepcopy(loss_fn).cpu()) if isinstance(loss_fn, nn.Module) else loss_fn


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of its state dict."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def values_of(module: nn.Module, names: Container[str]) -> dict[str, torch.Tensor]:
    """A copy of its parameters and buffers of these names, buffers that its state dict leaves out among them."""
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: value.detach().clone() for name, value in held if name in names}


def computed(compute: Callable[[], Found], drawn: bool) -> Found:
    """What the user's module gives on one device; InputsError where it can't compute with the batch.

    drawn  whether the batch is of random numbers, which needn't be what the model takes
    """
    whose = "the batch that verification draws" if drawn else "the batch"
    remedy = "give plan.verify(batch=...) a batch that the model takes"
    try:
        found = compute()
    except (RuntimeError, ValueError, IndexError) as error:
        told = error.text.strip().splitlines()[-1] if isinstance(error, RankError) else error
        raise InputsError(whose, f"the model can't compute with it on one device: {told}", remedy) from error
    if isinstance(found, Run) and not math.isfinite(found.losses[0]):
        raise InputsError(whose, f"the model's loss is {found.losses[0]} on one device", remedy)
    if isinstance(found, torch.Tensor) and not bool(torch.isfinite(found).all()):
        raise InputsError(whose, "the model's result isn't finite on one device", remedy)
    return found


def loss_of(module: nn.Module, loss_fn: Callable | None, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The loss of one batch, by name in the order of the trace: as it was traced."""
    return WithLoss(module, bind_named(module, batch, loss_fn), loss_fn, training=True)(*batch.values())


def result_of(module: nn.Module, loss_fn: Callable | None, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The result of one batch in evaluation, by name in the order of the trace: as it was traced."""
    bound = WithLoss(module.eval(), bind_named(module, batch, loss_fn), loss_fn, training=False)
    with torch.no_grad(), widened(), plain_experts(module):
        return bound(*batch.values())


def train_eagerly(
    module: nn.Module, loss_fn: Callable | None, batch: Mapping[str, torch.Tensor], training: Training, steps: int, *,
    drops: bool = True, microbatches: int = 1, trained: Container[str] = (),
) -> Run:  # fmt: skip
    """``steps`` optimizer steps on one batch; in float64 the module's own casts to float32 are widened, too.

    drops         False: nothing is dropped, whatever the probabilities say
    microbatches  whose losses' mean is minimised, each that of its rows alone
    trained       names of parameters whose gradient is zero where autograd gives none: an expert's that no token chose

    Submodules run in their own modes; a module that is wholly in eval mode is switched to training, as it is traced.
    """
    set_modes(module, training=True, switched=wholly_evaluated(module))
    with torch.inference_mode(False), torch.enable_grad(), nullcontext() if drops else Quiet():
        return steps_of(module, loss_fn, parts_of(batch, microbatches), training, steps, trained)


def parts_of(batch: Mapping[str, torch.Tensor], count: int) -> list[Mapping[str, torch.Tensor]]:
    """The microbatches of a batch, by consecutive rows; what has no rows of it is in each."""
    rows = Counter(x.shape[0] for x in batch.values() if x.ndim).most_common(1)[0][0]  # as ``ir.graph.batch_rows``
    chunks = {k: x.chunk(count) if x.shape[:1] == (rows,) else (x,) * count for k, x in batch.items()}
    return [{name: parts[j] for name, parts in chunks.items()} for j in range(count)]


def steps_of(
    module: nn.Module, loss_fn: Callable | None, parts: Sequence[Mapping[str, torch.Tensor]], training: Training,
    steps: int, trained: Container[str] = (),
) -> Run:  # fmt: skip
    optimizer = build_optimizer(module.named_parameters(remove_duplicate=False), training)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(sum(backward(module, loss_fn, part, training, 1 / len(parts)) for part in parts))
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter.grad is None and name in trained:
                parameter.grad = torch.zeros_like(parameter)
        if step == 0:
            gradients = gradients_of(module)
        update(module, optimizer, training)
    return Run(tuple(losses), gradients, state_of(module))


def backward(
    module: nn.Module, loss_fn: Callable | None, batch: Mapping[str, torch.Tensor], training: Training,
    share: float = 1.0,
) -> float:  # fmt: skip
    """A share of the loss, after its gradients have been accumulated: dense, as a program's are, where an embedding's
    are sparse."""
    with ExitStack() as stack:
        if training.precision == "fp64":
            stack.enter_context(widened())
            stack.enter_context(plain_experts(module))
        loss = loss_of(module, loss_fn, batch) * share
        loss.backward()
    for parameter in module.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    return float(loss.detach())


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def update(module: nn.Module, optimizer: torch.optim.Optimizer, training: Training) -> None:
    if training.clip_grad_norm is not None:
        nn.utils.clip_grad_norm_(module.parameters(), training.clip_grad_norm)
    optimizer.step()


@contextmanager
def plain_experts(module: nn.Module) -> Iterator[None]:
    """Mixtures of experts of transformers run as their modules are written: the grouped products that stand in for
    them have no float64."""
    chosen = "_experts_implementation"
    configs = {id(c): c for m in module.modules() if hasattr(c := getattr(m, "config", None), chosen)}
    before = {key: getattr(config, chosen) for key, config in configs.items()}
    try:
        for config in configs.values():
            setattr(config, chosen, "eager")
        yield
    finally:
        for key, config in configs.items():
            setattr(config, chosen, before[key])
