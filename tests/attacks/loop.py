"""A training loop's own mistakes: gradients, groups and states that would be lost or taken for others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import autoplan
from autoplan.errors import AutoplanError
from autoplan.ir.parameter_groups import ParameterGroup
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.optim.optimizer_options import check_optimizer
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, equal, refused, refused_command
from tests.fixtures import tiny_program as tiny
from tests.support import added_gradients as added

PLAN = dict(dp=2, tp=2, zero=1, microbatches=2)
DECAY = ({"match": "*.bias|*.scale", "weight_decay": 0.0},)
NO_GRADIENTS = "program.optimizer.step(): there are no gradients"


def exact(**fields: object) -> Training:
    return Training(precision="fp64", learning_rate=1e-2, compile=False, **fields)  # type: ignore[arg-type]


def program_of(training: Training, plan: Mapping = PLAN) -> Program:
    spec = tiny.spec(**plan, training=training)
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().state_dict())
    return program


def on_a_rank(rank: int, world: int, act: Callable[[Program], object]) -> tuple[str, bool]:
    """(the error's text, whether gradients and parameters are what they were before the call that failed)"""
    with program_of(exact()) as program:
        kept: list[Tensor] = []

        def note() -> None:
            kept[:] = [t.clone() for h in program.held for t in (h.values, h.gradient) if t is not None]

        try:
            act(program, note)  # type: ignore[call-arg]
        except AutoplanError as error:
            now = [t for h in program.held for t in (h.values, h.gradient) if t is not None]
            return str(error), len(now) == len(kept) and all(map(torch.equal, now, kept))
        return "", True


def told(name: str, guards: str, act: Callable, *words: str) -> Attack:
    def run(place: Place) -> str:
        results = place.pools.of(4).run(on_a_rank, act, timeout_s=30)
        for rank, (text, unchanged) in enumerate(results):
            if not text or not all(word in text for word in words):
                raise Silent(f"rank {rank} heard: {text!r}")
            if not unchanged:
                raise Lost(f"rank {rank} has other gradients or parameters")
        return str(results[0][0])

    return Attack("loop", name, guards, run)


def batches(count: int = 3) -> list[dict[str, Tensor]]:
    return list(tiny.batches(count))


def two_steps(program: Program, note: Callable) -> None:
    program.step(batches()[0])
    note()
    program.step(batches()[1])


def two_after_adding(program: Program, note: Callable) -> None:
    for batch in batches():
        program.step(batch, accumulate=True)
    note()
    program.step(batches()[1])


def update_first(program: Program, note: Callable) -> None:
    note()
    program.optimizer.step()


def update_after_zero_grad(program: Program, note: Callable) -> None:
    program.step(batches()[0])
    program.optimizer.zero_grad()
    note()
    program.optimizer.step()


def diverging_addition(program: Program, note: Callable) -> None:
    """The second of two batches has a loss that isn't finite."""
    program.step(batches()[0])
    values = program.held[0].values
    before = values.clone()
    note()
    values.fill_(torch.nan)
    try:
        program.step(batches()[1], accumulate=True)
    finally:
        values.copy_(before)


def diverged_then_updated(program: Program, note: Callable) -> None:
    values = program.held[0].values
    before = values.clone()
    values.fill_(torch.nan)
    try:
        program.step(batches()[0])
    except AutoplanError:
        values.copy_(before)
    note()
    program.optimizer.step()


def wrong_batch_while_adding(program: Program, note: Callable) -> None:
    program.step(batches()[0])
    note()
    program.step({name: value[:3] for name, value in batches()[1].items()}, accumulate=True)


def state_without_a_key(program: Program, note: Callable) -> None:
    state = dict(program.state_dict())
    if program.rank == 3:
        state.pop("layers.1.scale")
    state = {name: value * 2 for name, value in state.items()}
    note()
    program.load_state_dict(state)


def other_optimizer_state(program: Program, note: Callable) -> None:
    """One of torch's own, of another optimizer of as many groups."""
    note()
    theirs = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    program.optimizer.load_state_dict(theirs.state_dict())


def sums_up(place: Place) -> str:
    wanted = added.one_device()
    for plan in ("zero3", "zero-bubble"):
        found = place.pools.of(4).run(added.accumulated, added.PLANS[plan])[0]
        for got, whole in zip(found, wanted, strict=True):
            off = max(float((got[name] - whole[name]).abs().max()) for name in whole)
            if off > 1e-12:
                raise Silent(f"{plan}: off by {off:.1e}")
    return "equal: the sum of the batches' gradients, and the parameters after three updates"


def overflow(place: Place) -> str:
    found = place.pools.of(4).run(added.overflowing, added.PLANS["zero1"], 0)
    wanted = ([True, True, True, False], 0, True)
    return equal(all(r[:3] == wanted for r in found), "the update is skipped, and it alone")


def states_loaded_twice(rank: int, world: int) -> tuple[bool, bool]:
    """Whether a state is still what it was after training went on from it, and brings the same back again."""
    with program_of(exact()) as program:
        program.step(batches()[0])
        program.optimizer.step()
        model = {name: value.clone() for name, value in program.state_dict().items()}
        state = copy.deepcopy(program.optimizer.state_dict())
        kept, ends = str(state), []
        for _ in range(2):
            program.load_state_dict(model)
            program.optimizer.load_state_dict(state)
            program.step(batches()[1])
            program.optimizer.step()
            ends.append([h.values.clone() for h in program.held])
            program.optimizer.zero_grad()
        return str(state) == kept, all(map(torch.equal, *ends))


def states_are_kept(place: Place) -> str:
    found = place.pools.of(4).run(states_loaded_twice)
    return equal(found == [(True, True)] * 4, "a state that was loaded stays as it was")


def whole_state(rank: int, world: int) -> bool:
    """Whether each rank has its part of whole tensors under the user's names, as the plain model gives them."""
    with program_of(exact()) as program:
        wanted = {name: value + 1 for name, value in tiny.reference().state_dict().items()}
        program.load_state_dict(wanted)
        found = program.state_dict(full=True)
        return all(torch.equal(found[name], wanted[name].to(found[name].dtype)) for name in wanted)


def whole_state_is_taken_apart(place: Place) -> str:
    return equal(all(place.pools.of(4).run(whole_state)), "each rank has its part of it")


def resumed(rank: int, world: int, folder: str) -> bool:
    """Whether gradients of the weights before a load are gone after it."""
    with program_of(exact()) as program:
        program.save_checkpoint(folder)
        program.step(batches()[0])
        program.load_checkpoint(folder)
        program.step(batches()[1], accumulate=True)
        found = program.full_grads()
        program.optimizer.zero_grad()
        program.step(batches()[1])
        wanted = program.full_grads()
        return all(torch.equal(found[name], wanted[name]) for name in wanted)


def gradients_of_before(place: Place) -> str:
    return equal(all(place.pools.of(4).run(resumed, str(place.folder / "c"))), "those of the weights before are gone")


def decayed(rank: int, world: int, training: Training) -> dict[str, Tensor]:
    with program_of(training) as program:
        for batch in batches():
            program.step(batch)
            program.optimizer.step()
        return dict(program.full_state_dict())


def no_decay(place: Place) -> str:
    """torch's own groups, written by hand, on one device."""
    model = tiny.reference()
    plain = [p for n, p in model.named_parameters() if n.endswith((".bias", ".scale"))]
    rest = [p for n, p in model.named_parameters() if not n.endswith((".bias", ".scale"))]
    groups = [{"params": rest}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.5)
    for batch in batches():
        optimizer.zero_grad()
        model(**batch).backward()
        optimizer.step()
    found = place.pools.of(4).run(decayed, exact(weight_decay=0.5, groups=DECAY))[0]
    off = max(float((found[name] - value).abs().max()) for name, value in model.state_dict().items())
    return equal(off < 1e-12, f"decayed, and not decayed, as on one device: off by {off:.0e}")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)).square().mean()


def plan_with(*groups: object) -> autoplan.Plan:
    training = Training(groups=groups)  # type: ignore[arg-type]
    return autoplan.parallelize(Small(), "1x2 cpu", (torch.ones(4, 4),), training=training, parallelism="ddp")


def grouped(name: str, guards: str, groups: tuple, *words: str) -> Attack:
    return Attack("loop", name, guards, lambda place: refused(lambda: plan_with(*groups), *words))


def of_values(name: str, parameter: nn.Parameter) -> bool:
    return bool(parameter.sum() > 0)


def kept_predicate(place: Place) -> str:
    plan = plan_with(ParameterGroup(lambda name, p: p.ndim < 2, {"weight_decay": 0.0}))
    plan.export(place.folder / "out")
    training = autoplan.load(place.folder / "out").record.training
    assert isinstance(training, Training)
    model = Small()
    optimizer = build_optimizer(model.named_parameters(), training)
    few = {id(p) for p in optimizer.param_groups[1]["params"]}
    right = few == {id(p) for p in model.parameters() if p.ndim < 2}
    return equal(right and optimizer.param_groups[1]["weight_decay"] == 0.0, f"names in plan.json: {training.groups}")


def told_pattern(place: Place) -> str:
    report = plan_with({"match": "*norm*|*.beta", "weight_decay": 0.0}).report(verbose=True)
    return equal("(nothing matches *.beta)" in report, "the report tells of a pattern that matches nothing")


def command(place: Place) -> str:
    model = Path(__file__).resolve().parents[2] / "examples" / "mlp.py"
    asked = ["plan", "--model", f"{model}:make_model", "--cluster-spec", "1x2 cpu"]
    groups = "groups={'match': 'nrom*', 'weight_decay': 0.0}"
    return refused_command([*asked, "--training", groups], "nrom*", "no parameter of the model")


def one_cycle(place: Place) -> str:
    schedule = LRSchedule("OneCycleLR", options={"max_lr": 1.0, "total_steps": 9})
    training = Training(groups=({"match": "*", "lr": 0.1},), lr_schedule=schedule)  # type: ignore[arg-type]
    return refused(lambda: check_optimizer(training), "OneCycleLR gives all groups the same")


LOST = "the first batch's gradients are lost"
WRONG = "an update that does nothing, and counts as one"
ATTACKS: tuple[Attack, ...] = (
    told("two steps without an update", LOST, two_steps, "the gradients of 1 batch before it", "accumulate=True"),
    told("a plain step after three that add up", LOST, two_after_adding, "the gradients of 3 batches"),
    told("an update before any step", WRONG, update_first, NO_GRADIENTS),
    told("an update after zero_grad", WRONG, update_after_zero_grad, NO_GRADIENTS),
    told("a batch that diverges while adding up", "it spoils what was there", diverging_addition, "loss=nan"),
    told("an update after a loss that diverged", "parameters become NaN", diverged_then_updated, NO_GRADIENTS),
    told("a wrong batch while adding up", LOST, wrong_batch_while_adding, "tokens of shape (3, 3)"),
    Attack("loop", "three batches before an update", "they don't add up as on one device", sums_up),
    Attack("loop", "an overflow in one of three batches", "the other two are applied alone", overflow),
    Attack("loop", "a checkpoint loaded between two batches", "gradients of other weights stay", gradients_of_before),
    told("a state that lacks a key on one rank", "three ranks load it", state_without_a_key, "layers.1.scale"),
    Attack("loop", "a whole state dict for this rank's", "it is taken for parts", whole_state_is_taken_apart),
    told("another optimizer's state", "moments of other parameters", other_optimizer_state, "a program's optimizer"),
    Attack("loop", "a state that is loaded twice", "training changes the user's copy", states_are_kept),
    Attack("loop", "no decay on biases and scales", "they are decayed", no_decay),
    grouped("a misspelt pattern", "all are decayed", ({"match": "linaer.*", "lr": 0.1},), "linear.", "no parameter"),
    grouped(
        "a group behind one that matches all", "its options are never used",
        ({"match": "*", "lr": 0.1}, {"match": "*.bias", "lr": 0.2}), "stands before it",
    ),
    grouped("an option that AdamW lacks", "it is ignored", ({"match": "*", "momentum": 0.9},), "adamw has no momentum"),
    grouped("an option misspelt", "it is ignored", ({"match": "*", "weight_decy": 0.0},), "no weight_decy"),
    grouped("a group without options", "it does nothing", ({"match": "*.bias"},), "it has no options"),
    grouped("a group with params for match", "it is ignored", ({"params": "*", "lr": 1.0},), "which parameters it"),
    grouped("a rate below zero", "training climbs", ({"match": "*", "lr": -0.1},), "Invalid learning rate"),
    grouped("amsgrad in a group", "it is priced without it", ({"match": "*.bias", "amsgrad": True},), "other state"),
    grouped("a predicate that reads values", "a traceback", (ParameterGroup(of_values, {"lr": 1.0}),), "meta device"),
    Attack("loop", "a predicate, exported and loaded", "it is gone from the plan", kept_predicate),
    Attack("loop", "one of two patterns that matches nothing", "nobody is told", told_pattern),
    Attack("loop", "a misspelt pattern on the command line", "a traceback, or all are decayed", command),
    Attack("loop", "a group's own rate under OneCycleLR", "torch sets all groups to one rate", one_cycle),
)  # fmt: skip
