"""The sharded program against one device.

Both start from the same weights and take three optimizer steps on the same batch. The loss, every gradient and the
parameters are compared in float64, where Adam doesn't amplify rounding. A large plan is made small first.

Order: `atoms` (dims that shrink together), `shrink` (a large plan made small), `batch` (real values), `quiet` (without
dropout), `single` (the plan of one rank), `compare` (two runs compared), `local_ranks` (ranks on this machine),
`reference` (the user's module on one device), `asynchronous` (references of asynchronous systems), `sharded` (the
program on local ranks), `inference` (the forward alone).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from autoplan.errors import InputsError, VerificationError
from autoplan.export.folder import write_folder
from autoplan.ir.graph import Model, Node
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.runtime.data.microbatches import Batch
from autoplan.verify.asynchronous import train_by_rule
from autoplan.verify.batch import example_batch, given_batch
from autoplan.verify.compare import (
    FLOAT64,
    Run,
    Worst,
    gradient_error,
    loss_error,
    parameter_error,
    zero_gradients,
)
from autoplan.verify.inference import ForwardVerification, verify_forward
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import drawn_values, reference_of, train_eagerly, wide_loss
from autoplan.verify.sharded import train_sharded
from autoplan.verify.shrink import shrink
from autoplan.verify.single import on_one_device, random_state

MOST_RANKS = 8
STEPS = 3
OFTEN = 2  # steps between two averages of replicas, of those that are verified

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Verification:
    """How far the sharded program was from one device, as relative errors.

    ranks    processes it ran on
    note     what was verified in place of the plan itself, "" where it was the plan itself
    against  what it was compared with
    """

    ranks: int
    loss: Worst
    gradients: Worst
    parameters: Worst
    note: str = ""
    against: str = "one device"

    @property
    def passed(self) -> bool:
        bounds = FLOAT64
        return (
            self.loss.error <= bounds.loss
            and self.gradients.error <= bounds.gradients
            and self.parameters.error <= bounds.parameters
        )

    def __str__(self) -> str:
        verdict = f"{'equal' if self.passed else 'NOT equal'} to {self.against}"
        lines = [
            f"{verdict}, on {self.ranks} local processes in float64{': ' + self.note if self.note else ''}",
            f"  loss        {self.loss.error:.1e}   (bound {FLOAT64.loss:.0e})",
            f"  gradients   {self.gradients.error:.1e}   (bound {FLOAT64.gradients:.0e})   {self.gradients.name}",
            f"  parameters  {self.parameters.error:.1e}   (bound {FLOAT64.parameters:.0e})   after {STEPS} optimizer "
            f"steps   {self.parameters.name}",
        ]
        return "\n".join(line.rstrip() for line in lines)


def verify(
    record: PlanRecord,
    module: nn.Module | None,
    loss_fn: Callable | None,
    *,
    seed: int,
    raises: bool,
    given: Batch | None = None,
) -> Verification | ForwardVerification:
    """Compares a plan's program with one device; see ``Plan.verify``."""
    if not isinstance(record.training, Training):
        return verify_forward(record, module, loss_fn, seed=seed, raises=raises, given=given)
    exact, note = record.in_float64(), ""
    training = record.training.with_precision("fp64")
    if record.chosen.mesh.devices > MOST_RANKS:
        if given is not None:
            cause = f"it is verified with smaller sizes, for it has more than {MOST_RANKS} ranks"
            raise InputsError(f"a batch for a plan of {record.chosen.mesh.devices} ranks", cause, "leave it out")
        exact, note = shrink(exact)
        module = None
    batch = example_batch(exact.model, seed) if given is None else given_batch(exact.model, given)
    against = "one device"
    if exact.chosen.parallelism.steps_locally and (module is None or drops(exact.model)):
        exact = synchronous(exact)
        note = "; ".join(filter(None, (note, "no one device takes its replicas' steps: with gradients summed in each")))
    elif (exact.chosen.parallelism.local_steps or 1) > OFTEN:
        exact, told = averaged_often(exact)
        note = "; ".join(filter(None, (note, told)))
    if module is None or drops(exact.model):
        state = random_state(exact.model, seed)
        expected = train_plan(on_one_device(exact), batch, state)
        said = "one device is the same program on one rank" + (", with the same random numbers" * drops(exact.model))
        note = "; ".join(filter(None, (note, said)))
        if module is not None and not draws(exact.model):
            reference = reference_of(module, seed, drawn_values(module, exact.model, seed)[0])
            check_trace(synchronous(exact), reference, wide_loss(loss_fn), batch, training)
    else:
        drawn, told = drawn_values(module, exact.model, seed)
        reference, loss_fn = reference_of(module, seed, drawn), wide_loss(loss_fn)
        note = "; ".join(filter(None, (note, told)))
        state = {name: value.detach().clone() for name, value in reference.state_dict().items()}
        chosen = exact.chosen
        if chosen.parallelism.asynchronous:
            against = f"one process that follows {rule_of(chosen.parallelism)}"
            rule = (chosen.parallelism, chosen.microbatches)
            expected = train_by_rule(reference, loss_fn, batch, training, *rule, STEPS)
        else:
            expected = train_of_user(reference, loss_fn, batch, training, drawn=given is None)
    sharded = train_plan(exact, batch, state)
    result = replace(compared(sharded, expected, exact.chosen.mesh.devices, note), against=against)
    if raises and not result.passed:
        raise VerificationError(
            "plan.verify()",
            f"the sharded program differs from one device:\n{result}",
            "report it with the plan.json: a plan that differs is autoplan's mistake",
        )
    return result


def train_of_user(
    reference: nn.Module, loss_fn: Callable | None, batch: Tensors, training: Training, drawn: bool
) -> Run:
    """The user's module on one device. InputsError where it can't compute with the batch.

    drawn  whether the batch is of random numbers, which needn't be what the model takes
    """
    whose = "the batch that verification draws" if drawn else "the batch"
    remedy = "give plan.verify(batch=...) a batch that the model trains on"
    try:
        run = train_eagerly(reference, loss_fn, batch, training, STEPS)
    except (RuntimeError, ValueError, IndexError) as error:
        raise InputsError(whose, f"the model can't compute with it on one device: {error}", remedy) from error
    if not math.isfinite(run.losses[0]):
        raise InputsError(whose, f"the model's loss is {run.losses[0]} on one device", remedy)
    return run


def synchronous(record: PlanRecord) -> PlanRecord:
    """The same plan with gradients of the newest weights, summed in every step: what one device equals."""
    p = record.chosen.parallelism
    p = replace(p, local_steps=None, pipeline_schedule="1f1b" if p.two_versions else p.pipeline_schedule)
    return replace(record, chosen=replace(record.chosen, parallelism=p))


def averaged_often(record: PlanRecord) -> tuple[PlanRecord, str]:
    """The same plan with its replicas averaged so often that a verification sees it, and what to say of that."""
    every = record.chosen.parallelism.local_steps
    parallelism = replace(record.chosen.parallelism, local_steps=OFTEN)
    told = f"averaging every {OFTEN} steps in place of {every}"
    return replace(record, chosen=replace(record.chosen, parallelism=parallelism)), told


def rule_of(parallelism: Parallelism) -> str:
    """What an asynchronous program is compared with."""
    if parallelism.steps_locally:
        return f"local SGD's rule, averaging every {parallelism.local_steps} steps"
    return "PipeDream-2BW's rule, gradients of the weights before the last update"


def drops(model: Model) -> bool:
    """Whether the model drops elements or draws numbers: one device is then a program that drops and draws the same,
    not the user's module."""
    return any(
        node.op in ("autoplan.dropout", "autoplan.uniform") or (is_attention(node) and node.args[4] != 0.0)
        for block in model.blocks
        for node in block.nodes
    )


def draws(model: Model) -> bool:
    """Whether the model draws numbers, which stay where nothing is dropped."""
    return any(node.op == "autoplan.uniform" for block in model.blocks for node in block.nodes)


def without_dropout(model: Model) -> Model:
    """The model with every probability of dropping an element set to zero."""

    def quiet(node: Node) -> Node:
        if node.op == "autoplan.dropout":
            return replace(node, args=(node.args[0], 0.0, *node.args[2:]))
        return replace(node, args=(*node.args[:4], 0.0, *node.args[5:])) if is_attention(node) else node

    return replace(model, blocks=tuple(replace(b, nodes=tuple(map(quiet, b.nodes))) for b in model.blocks))


def check_trace(
    exact: PlanRecord, module: nn.Module, loss_fn: Callable | None, batch: Tensors, training: Training
) -> None:
    """Where masks keep the module from being the reference: without dropout it has to equal its graph on one device."""
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    quiet = replace(exact, model=without_dropout(exact.model))
    found = train_plan(on_one_device(quiet), batch, state)
    result = compared(found, train_eagerly(module, loss_fn, batch, training, STEPS, drops=False), 1)
    if not result.passed:
        raise VerificationError(
            "plan.verify()",
            f"without dropout, the traced graph on one device differs from the module:\n{result}",
            "report it with the model: a trace that differs is autoplan's mistake",
        )


def is_attention(node: Node) -> bool:
    return node.op.startswith("aten.scaled_dot_product_attention") and len(node.args) > 4


def train_plan(record: PlanRecord, batch: Tensors, state: Tensors) -> Run:
    """The plan's program, exported to a temporary folder and run on as many processes as the plan has ranks."""
    whole = frozenset(state)
    persistent = replace(record.model, buffers=tuple(replace(b, persistent=True) for b in record.model.buffers))
    if all(b.name in whole for b in record.model.buffers):
        record = replace(record, model=persistent)
    with tempfile.TemporaryDirectory(prefix="autoplan-verify-") as name:
        folder, weights = Path(name) / "out", Path(name) / "weights.safetensors"
        write_folder(record, folder, "verification", {})
        save_file({key: value.contiguous().clone() for key, value in state.items()}, weights)
        with RankPool(record.chosen.mesh.devices) as pool:
            return train_sharded(pool, str(folder), batch, str(weights), STEPS)


def compared(sharded: Run, expected: Run, ranks: int, note: str = "") -> Verification:
    zero = zero_gradients(expected)
    return Verification(
        ranks,
        loss_error(sharded, expected),
        gradient_error(sharded, expected, zero),
        parameter_error(sharded, expected, zero),
        note,
    )
