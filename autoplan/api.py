"""``parallelize``: a model and a cluster in, a plan out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from autoplan.cluster import ClusterSpec
from autoplan.errors import InputsError, ParallelismError
from autoplan.graph import Model
from autoplan.initialise import record as record_initialisation
from autoplan.inputs import resolve_inputs
from autoplan.options import PRECISIONS, Inference, Parallelism, Training
from autoplan.plan import Plan
from autoplan.precision import compute_dtype, computed_in, in_precision
from autoplan.record import PlanRecord
from autoplan.runtime.optimizer import optimizer_class
from autoplan.search import search
from autoplan.search.constraints import Constraint, accept_whole
from autoplan.search.systems import resolve as resolve_parallelism
from autoplan.trace import trace


def parallelize(
    model: nn.Module,
    cluster_spec: ClusterSpec | str | Mapping | os.PathLike,
    example_inputs: object = None,
    *,
    loss_fn: Callable | None = None,
    training: Training | Inference | None = None,
    parallelism: str | Parallelism = "auto",
    constraints: Sequence[Constraint] = (),
) -> Plan:
    """Plans how a model trains on a cluster.

    model           any module that torch.export traces; it may live on the meta device, and is left as it was
    cluster_spec    "4x8 h100-sxm" (nodes x devices, a profile's name), a .toml path, a dict, or a ClusterSpec
    example_inputs  tuple or dict of tensors, meta tensors welcome: the global batch of one optimizer step
    loss_fn         (model_output, *targets) -> scalar; not needed where the model returns its loss
    training        how it trains: optimizer, precision, clipping; None: AdamW, bf16-mixed where the device computes
                    faster in bfloat16 than in float32, else fp32
    parallelism     "auto", a named system, or Parallelism(...) with any field pinned
    constraints     operators pinned to a layout, splits forbidden, operators accepted as replicated

    Raises a subclass of AutoplanError, which names value, cause and remedy, where there is no plan.
    """
    check_arguments(training, constraints)
    cluster = ClusterSpec.of(cluster_spec)
    pinned = resolve_parallelism(parallelism, cluster)
    training = as_run(training or default_training(cluster), cluster)
    check_precision(training.precision, cluster)
    inputs = resolve_inputs(model, example_inputs, cluster.devices)
    dtype = compute_dtype(training.precision)
    is_training = isinstance(training, Training)
    traced = trace(model, inputs, loss_fn=loss_fn, training=is_training, dtype=dtype)
    traced = in_precision(traced, training.precision)
    check_loss(traced, is_training)
    traced = accept_whole(traced, constraints)
    chosen, alternatives, report = search(traced, cluster, training, pinned, tuple(constraints))
    record = PlanRecord(cluster, training, traced, chosen, alternatives, report, record_initialisation(model))
    record.lowered()
    return Plan(record, module=model, loss_fn=loss_fn)


def check_arguments(training: Training | Inference | None, constraints: Sequence[Constraint]) -> None:
    """Refuses, before anything is traced, what can't be planned or what no exported program could run."""
    if training is not None and not isinstance(training, Training | Inference):
        raise ParallelismError(
            f"training={training!r}", "it says nothing of how to train", "give autoplan.Training(...) or Inference()"
        )
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise ParallelismError(
                f"constraint {constraint!r}", "it is none", "use autoplan.pin, autoplan.forbid or autoplan.replicated"
            )
    if isinstance(training, Training):
        optimizer_class(training.optimizer)
        if training.precision == "fp16-mixed":
            raise ParallelismError(
                "precision='fp16-mixed'", "the runtime scales no losses, which float16 needs", "use 'bf16-mixed'"
            )


def check_precision(precision: str, cluster: ClusterSpec) -> None:
    """Refuses a precision that the cluster's device doesn't multiply in: it has no price there."""
    device, _ = cluster.profile()
    peaks = device.peak_flops_per_s
    if computed_in(precision) not in peaks:
        known = [name for name in PRECISIONS if computed_in(name) in peaks and name != "fp16-mixed"]
        cause = f"{device.name} has no peak for {computed_in(precision)}"
        raise ParallelismError(f"precision={precision!r}", cause, f"use one of {', '.join(known)}")


def check_loss(traced: Model, training: bool) -> None:
    last = traced.blocks[traced.segments[-1].block]
    shape = last.types()[last.outputs[0]].shape
    if training and shape != ():
        raise InputsError(
            f"a loss of shape {shape}", "what is minimised is one number", "let loss_fn return a scalar, such as a mean"
        )


def as_run(training: Training | Inference, cluster: ClusterSpec) -> Training | Inference:
    """What is asked for, less the compilation where a device's programs run eagerly: priced is what runs."""
    return training if cluster.profile()[0].compiles else replace(training, compile=False)


def default_training(cluster: ClusterSpec) -> Training:
    """AdamW in the precision that a device is made for."""
    peaks = cluster.profile()[0].peak_flops_per_s
    return Training(precision="bf16-mixed" if peaks.get("bfloat16", 0) > peaks.get("float32", 0) else "fp32")
