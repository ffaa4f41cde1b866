"""The sharded program against one device.

Both start from the same weights and take three optimizer steps on the same batch. The loss, every gradient and the
parameters are compared in float64, where Adam doesn't amplify rounding. A large plan is made small first.

Modules, each importing only those before it:

    atoms         dims that shrink together
    shrink        a large plan made small
    batch         real values
    variants      the plan without compilation, in float64
    quiet         the plan without dropout
    single        the plan of one rank
    compare       two runs compared
    conditioning  the error that rounding alone makes
    verification  errors beside their bounds
    local_ranks   ranks on this machine
    reference     the user's module on one device
    one_process   references of asynchronous systems and of compressed gradients
    sharded       the program on local ranks
    inference     the forward alone
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from autoplan.errors import VerificationError
from autoplan.evaluation.evaluation_graph import without_dropout
from autoplan.ir.record import PlanRecord
from autoplan.options import Training
from autoplan.runtime.data.microbatches import Batch
from autoplan.verify.compare import Run, gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.conditioning import OtherOrder
from autoplan.verify.inference import verify_forward
from autoplan.verify.one_process.asynchronous import train_by_rule
from autoplan.verify.one_process.older_weights import lateness
from autoplan.verify.reference import (
    computed,
    drawn_values,
    reference_of,
    state_of,
    train_eagerly,
    values_of,
    wide_loss,
)
from autoplan.verify.sharded import on_local_ranks, train_in_other_order, train_on_rank
from autoplan.verify.single import on_one_device, random_state
from autoplan.verify.variants import (
    MOST_RANKS,
    NOT_COMPRESSED,
    OFTEN,
    also,
    apart_on_one,
    averaged_often,
    compressed_at_once,
    drawn_by_place,
    draws,
    drops,
    local_plan,
    rewritten,
    rule_of,
    synchronous,
    trained_names,
)
from autoplan.verify.verification import STEPS, ForwardVerification, Verification

__all__ = ["STEPS", "ForwardVerification", "Verification", "verify"]

Tensors = Mapping[str, torch.Tensor]


def verify(
    record: PlanRecord, module: nn.Module | None, loss_fn: Callable | None, *, seed: int, raises: bool,
    given: Batch | None = None,
) -> Verification | ForwardVerification:  # fmt: skip
    """Compares a plan's program with one device; see ``Plan.verify``."""
    verified = verify_training if isinstance(record.training, Training) else verify_forward
    result = verified(record, module, loss_fn, seed=seed, given=given)
    if raises:
        result.check()
    return result


def verify_training(
    record: PlanRecord, module: nn.Module | None, loss_fn: Callable | None, *, seed: int, given: Batch | None = None
) -> Verification:
    exact, note, batch = local_plan(record, given, seed)
    for variant in (drawn_by_place, compressed_at_once):
        exact, told = variant(exact)
        note = also(note, told)
    training = exact.training
    assert isinstance(training, Training)
    parts = apart_on_one(exact)
    module = None if record.chosen.mesh.devices > MOST_RANKS else module
    limited = training.expert_capacity is not None  # the module itself drops nothing
    against, own = "one device", module is not None and not drops(exact.model) and not limited
    chosen = exact.chosen.parallelism
    if not own and (chosen.replica_mean_loss or chosen.compressed or chosen.continuous):
        told = "no one device takes its replicas' steps" if chosen.replica_mean_loss else NOT_COMPRESSED
        how = "with gradients summed in each"
        if chosen.continuous:
            told, how = "one device has no stages that are differently late", "flushed after each step"
        exact = synchronous(exact)
        note = also(note, f"{told}: {how}")
    elif (exact.chosen.parallelism.local_steps or 1) > OFTEN:
        exact, told = averaged_often(exact)
        note = also(note, told)
    if module is None or not own:
        state = random_state(exact.model, seed)
        if module is not None:  # a schedule of noise has to hold what it holds
            state |= values_of(reference_of(module, seed, drawn_values(module, exact.model, seed)[0]), state)
        expected = computed(lambda: train_plan(on_one_device(exact), batch, state), given is None)

        def other_order() -> Run:
            return train_plan(on_one_device(exact), batch, state, train_in_other_order)

        same = ", with the same random numbers" * drops(exact.model) + ", with experts of the same capacity" * limited
        note = also(note, "one device is the same program on one rank" + same)
        if module is not None and not draws(exact.model) and not limited:
            reference = reference_of(module, seed, drawn_values(module, exact.model, seed)[0])
            check_trace(synchronous(exact), reference, wide_loss(loss_fn), batch, training)
    else:
        drawn, told = drawn_values(module, exact.model, seed)
        reference, wide, note = reference_of(module, seed, drawn), wide_loss(loss_fn), also(note, told)
        state, parallelism = state_of(reference), exact.chosen.parallelism
        if parallelism.asynchronous:
            against = f"one process that follows {rule_of(parallelism)}"
            expected = train_by_rule(reference, wide, batch, training, exact, steps_of(exact))
        else:
            expected = computed(
                lambda: train_eagerly(
                    reference, wide, batch, training, STEPS, microbatches=parts, trained=trained_names(exact.model)
                ),
                given is None,
            )

        def other_order() -> Run:
            again, trained = reference_of(module, seed, drawn), trained_names(exact.model)
            with OtherOrder():
                return train_eagerly(again, wide, batch, training, STEPS, microbatches=parts, trained=trained)

    result = compared(train_plan(exact, batch, state), expected, exact.chosen.mesh.devices, note, against)
    if result.passed or exact.chosen.parallelism.asynchronous:
        return result
    return with_rounding(result, expected, other_order())


def with_rounding(result: Verification, expected: Run, other: Run) -> Verification:
    """The result beside what one device's own sums differ by when they are taken in the other order."""
    apart = compared(other, expected, 1)
    rounding = (apart.loss.error, apart.gradients.error, apart.parameters.error)
    note = also(result.note, "bounds from one device's sums in two orders")
    return replace(result, rounding=rounding, note=note)


def check_trace(
    exact: PlanRecord, module: nn.Module, loss_fn: Callable | None, batch: Tensors, training: Training
) -> None:
    """Where masks keep the module from being the reference: without dropout it has to equal its graph on one device."""
    state = state_of(module)
    quiet = rewritten(exact, without_dropout(exact.model))
    found = train_plan(on_one_device(quiet), batch, state)
    expected = train_eagerly(
        module, loss_fn, batch, training, STEPS,
        drops=False, microbatches=apart_on_one(exact), trained=trained_names(exact.model),
    )  # fmt: skip
    result = compared(found, expected, 1)
    if not result.passed:
        raise VerificationError(
            "plan.verify()",
            f"without dropout, the traced graph on one device differs from the module:\n{result}",
            "report it with the model: a trace that differs is autoplan's mistake",
        )


def train_plan(record: PlanRecord, batch: Tensors, state: Tensors, on_rank: Callable = train_on_rank) -> Run:
    """A training by the plan's program."""
    run = on_local_ranks(record, batch, state, on_rank, steps_of(record))
    assert isinstance(run, Run)
    return run


def steps_of(record: PlanRecord) -> int:
    """Optimizer steps that are compared: STEPS, and those until the first batch's gradients are due on all stages."""
    return STEPS + lateness(record).most * record.chosen.parallelism.continuous


def compared(
    sharded: Run, expected: Run, ranks: int, note: str = "", against: str = "one device"
) -> Verification:
    zero = zero_gradients(expected)
    return Verification(
        ranks, loss_error(sharded, expected), gradient_error(sharded, expected, zero),
        parameter_error(sharded, expected, zero), note=note, against=against, steps=len(expected.losses),
    )  # fmt: skip
