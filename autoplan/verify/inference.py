"""A plan of the forward alone against one device: the whole result, in float64, from the same weights and batch."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from autoplan.ir.record import PlanRecord
from autoplan.runtime.data.microbatches import Batch
from autoplan.verify.compare import tensor_error
from autoplan.verify.reference import computed, drawn_values, reference_of, result_of, state_of
from autoplan.verify.sharded import forward_on_rank, on_local_ranks
from autoplan.verify.single import on_one_device, random_state
from autoplan.verify.variants import MOST_RANKS, also, draws, local_plan
from autoplan.verify.verification import ForwardVerification

Tensors = Mapping[str, torch.Tensor]


def verify_forward(
    record: PlanRecord, module: nn.Module | None, loss_fn: Callable | None, *, seed: int, given: Batch | None = None
) -> ForwardVerification:
    """Compares the result of a plan of Inference() with one device; see ``Plan.verify``."""
    exact, note, batch = local_plan(record, given, seed)
    if module is None or record.chosen.mesh.devices > MOST_RANKS or draws(exact.model):
        state = random_state(exact.model, seed)
        expected = run_forward(on_one_device(exact), batch, state)
        note = also(note, "one device is the same program on one rank")
    else:
        drawn, told = drawn_values(module, exact.model, seed)
        reference, note = reference_of(module, seed, drawn), also(note, told)
        state = state_of(reference)
        expected = computed(lambda: result_of(reference, loss_fn, batch), given is None)
    error = tensor_error({"result": run_forward(exact, batch, state)}, {"result": expected}, {})
    return ForwardVerification(exact.chosen.mesh.devices, error, note=note)


def run_forward(record: PlanRecord, batch: Tensors, state: Tensors) -> torch.Tensor:
    """The whole result of the plan's program."""
    result = on_local_ranks(record, batch, state, forward_on_rank)
    assert isinstance(result, torch.Tensor)
    return result
