"""Gradients of several batches added up before an update: on one device, on ranks, and with an overflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autoplan.ir.codec import decode, encode
from autoplan.ir.typed_program import Lowered
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from tests.fixtures import tiny_program as tiny

PLANS = {
    "dp4": dict(dp=4, microbatches=2),
    "zero1": dict(dp=4, zero=1, microbatches=2),
    "zero2 tp2": dict(dp=2, tp=2, zero=2, microbatches=2),
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "pp2 dp2 zero1, tied": dict(pp=2, dp=2, microbatches=2, zero=1),
    "pp2 tp2": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
    "interleaved": dict(pp=2, dp=2, microbatches=4, virtual_stages=2, pipeline_schedule="interleaved"),
    "zero-bubble": dict(pp=2, dp=2, microbatches=4, virtual_stages=2, pipeline_schedule="zero-bubble"),
    "offload": dict(tp=2, dp=2, zero=2, microbatches=2, offload="optimizer"),
}
ADDED = (2, 1, 3)  # batches before each of the updates
TRAINING = Training(precision="fp64", learning_rate=1e-2, clip_grad_norm=0.2, compile=False)


def one_device() -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The gradients before the first update, the parameters after the last."""
    model = tiny.reference()
    optimizer, batches = build_optimizer(model.parameters(), TRAINING), tiny.batches(sum(ADDED))
    first: dict[str, Tensor] = {}
    for count in ADDED:
        optimizer.zero_grad()
        for _ in range(count):
            model(**next(batches)).backward()
        named = model.named_parameters(remove_duplicate=False)
        first = first or {n: p.grad.clone() for n, p in named if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
    return first, model.state_dict()


def accumulated(rank: int, world: int, plan: dict) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    spec = tiny.spec(**plan, training=TRAINING)
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        batches, first = tiny.batches(sum(ADDED)), {}
        for number, count in enumerate(ADDED):
            for _ in range(count):
                program.step(next(batches), accumulate=True)
            first = first if number else program.full_grads()
            program.optimizer.step()
            if number:  # an update has used them: what follows begins anew, cleared or not
                program.optimizer.zero_grad()
        return first, dict(program.full_state_dict())


SCALED = Training(precision="fp16-mixed", learning_rate=1e-2, lr_schedule=LRSchedule("linear", steps=10), compile=False)


def in_float32(plan: dict, training: Training) -> Program:
    spec = tiny.spec(**plan, training=training)
    text = json.dumps(encode(spec.lowered)).replace("float64", "float32")
    spec = replace(spec, lowered=decode(Lowered, json.loads(text), "lowered"))
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().float().state_dict())
    return program


def overflowing(rank: int, world: int, plan: dict, at: int) -> tuple[list[bool], int, bool, int]:
    """Of three batches before one update, one overflows on one rank: (skipped after each, updates, unchanged, steps)"""
    with in_float32(plan, SCALED) as program:
        before, skipped = dict(program.full_state_dict()), []
        for number, batch in enumerate(tiny.batches(3)):
            if number == at and rank == 1:
                settle = program.updates.settle

                def spoilt(*given: Any, settle=settle) -> None:
                    next(h.gradient for h in program.held if h.gradient is not None).view(-1)[0] = torch.inf
                    program.updates.settle = settle  # type: ignore[method-assign]
                    settle(*given)

                program.updates.settle = spoilt  # type: ignore[method-assign]
            program.step(batch, accumulate=True)
            skipped.append(program.skipped)
        program.optimizer.step()
        after = dict(program.full_state_dict())
        assert program.updates.rates is not None
        updates = program.updates.rates.updates
        program.step(next(tiny.batches(1)), accumulate=True)
        same = all(torch.equal(before[name], after[name]) for name in before)
        return [*skipped, program.skipped], updates, same, program.steps
