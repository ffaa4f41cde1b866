"""A plan of the forward alone against one device: the whole result, in float64, from the same weights and batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from autoplan.errors import InputsError, VerificationError
from autoplan.export.folder import write_folder
from autoplan.ir.record import PlanRecord
from autoplan.runtime.data.microbatches import Batch
from autoplan.verify.batch import example_batch, given_batch
from autoplan.verify.compare import FLOAT64, Worst, tensor_error
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import drawn_values, reference_of, result_of
from autoplan.verify.sharded import SECONDS, forward_on_rank
from autoplan.verify.shrink import shrink
from autoplan.verify.single import on_one_device, random_state

MOST_RANKS = 8
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ForwardVerification:
    """How far the sharded forward was from one device, as a relative error.

    ranks    processes it ran on
    note     what was verified in place of the plan itself, "" where it was the plan itself
    against  what it was compared with
    """

    ranks: int
    result: Worst
    note: str = ""
    against: str = "one device"

    @property
    def passed(self) -> bool:
        return self.result.error <= FLOAT64.loss

    def __str__(self) -> str:
        verdict = f"{'equal' if self.passed else 'NOT equal'} to {self.against}"
        return (
            f"{verdict}, on {self.ranks} local processes in float64{': ' + self.note if self.note else ''}\n"
            f"  result      {self.result.error:.1e}   (bound {FLOAT64.loss:.0e})"
        )


def verify_forward(
    record: PlanRecord,
    module: nn.Module | None,
    loss_fn: Callable | None,
    *,
    seed: int,
    raises: bool,
    given: Batch | None = None,
) -> ForwardVerification:
    """Compares the result of a plan of Inference() with one device; see ``Plan.verify``."""
    exact, note = record.in_float64(), ""
    if record.chosen.mesh.devices > MOST_RANKS:
        if given is not None:
            cause = f"it is verified with smaller sizes, for it has more than {MOST_RANKS} ranks"
            raise InputsError(f"a batch for a plan of {record.chosen.mesh.devices} ranks", cause, "leave it out")
        (exact, note), module = shrink(exact), None
    batch = example_batch(exact.model, seed) if given is None else given_batch(exact.model, given)
    if module is None or draws(exact):
        state = random_state(exact.model, seed)
        expected = run_forward(on_one_device(exact), batch, state)
        note = "; ".join(filter(None, (note, "one device is the same program on one rank")))
    else:
        drawn, told = drawn_values(module, exact.model, seed)
        reference = reference_of(module, seed, drawn)
        note = "; ".join(filter(None, (note, told)))
        state = {name: value.detach().clone() for name, value in reference.state_dict().items()}
        expected = result_of_user(reference, loss_fn, batch, drawn=given is None)
    found = run_forward(exact, batch, state)
    error = tensor_error({"result": found}, {"result": expected}, {})
    result = ForwardVerification(exact.chosen.mesh.devices, error, note)
    if raises and not result.passed:
        raise VerificationError(
            "plan.verify()",
            f"the sharded program differs from one device:\n{result}",
            "report it with the plan.json: a plan that differs is autoplan's mistake",
        )
    return result


def draws(record: PlanRecord) -> bool:
    """Whether the model draws numbers in evaluation, too, which no one device draws alike."""
    return any(node.op == "autoplan.uniform" for block in record.model.blocks for node in block.nodes)


def result_of_user(module: nn.Module, loss_fn: Callable | None, batch: Tensors, drawn: bool) -> torch.Tensor:
    """The user's module in evaluation. InputsError where it can't compute with the batch, or gives nothing finite."""
    whose = "the batch that verification draws" if drawn else "the batch"
    remedy = "give plan.verify(batch=...) a batch that the model takes"
    try:
        result = result_of(module, loss_fn, batch)
    except (RuntimeError, ValueError, IndexError) as error:
        raise InputsError(whose, f"the model can't compute with it on one device: {error}", remedy) from error
    if not bool(torch.isfinite(result).all()):
        raise InputsError(whose, "the model's result isn't finite on one device", remedy)
    return result


def run_forward(record: PlanRecord, batch: Tensors, state: Tensors) -> torch.Tensor:
    """The whole result of the plan's program, on as many processes as the plan has ranks."""
    if all(b.name in state for b in record.model.buffers):
        persistent = tuple(replace(b, persistent=True) for b in record.model.buffers)
        record = replace(record, model=replace(record.model, buffers=persistent))
    with tempfile.TemporaryDirectory(prefix="autoplan-verify-") as name:
        folder, weights = Path(name) / "out", Path(name) / "weights.safetensors"
        write_folder(record, folder, "verification", {})
        save_file({key: value.contiguous().clone() for key, value in state.items()}, weights)
        with RankPool(record.chosen.mesh.devices) as pool:
            results = pool.run(forward_on_rank, str(folder), batch, str(weights), timeout_s=SECONDS)
    assert isinstance(results[0], torch.Tensor)
    return results[0]
