"""What a reviewer tried on the training side: ranks at different calls, odd states, references without values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import autoplan
from autoplan.errors import AutoplanError
from autoplan.options import Inference, Training
from autoplan.runtime.agreement.agreement import Call
from autoplan.runtime.inference.agreed_batch import whole_batch
from autoplan.runtime.program import Program
from autoplan.verify.reference import drawn_values, reference_of
from tests.attacks.attack import Attack, Place, Silent, equal
from tests.attacks.ranks import all_told, program_of
from tests.support import disagreements as cases
from tests.support.planning import parallelize_alone

WAITS, APART = "the other ranks wait for it until the watch ends them", "ranks read each other's collectives"
SPLIT = autoplan.Parallelism(dp=2, tp=1, pp=1)


def first() -> cases.Batch:
    return cases.three()[0]


def alone(act: Callable[[Program], object], which: int, program: Program, rank: int) -> object:
    """One rank does something while the others train."""
    return act(program) if rank == which else program.step(first())


def evaluates(program: Program) -> object:
    return program.evaluate(first())


def saves_weights(program: Program) -> object:
    return program.save_weights(Path(tempfile.gettempdir()) / "never written")


def saves_checkpoint(program: Program) -> object:
    return program.save_checkpoint(Path(tempfile.gettempdir()) / "never written")


def loads_checkpoint(program: Program) -> object:
    return program.load_checkpoint(Path(tempfile.gettempdir()) / "never written")


def gathers(program: Program) -> object:
    return dict(program.full_state_dict())


def initialises(program: Program) -> object:
    return program.init_weights(7)


def loads_own_state(program: Program) -> object:
    return program.load_state_dict(program.state_dict())


def prints_gradients(program: Program, rank: int) -> object:
    program.step(first())
    return program.full_grads() if rank == 0 else program.evaluate(first())


def evaluates_a_step_behind(program: Program, rank: int) -> object:
    program.step(first())
    program.steps += rank == 3  # as an update of that rank alone would
    return program.evaluate(first())


def takes_state(state: object, which: int, program: Program, rank: int) -> object:
    return program.optimizer.load_state_dict(state if rank == which else program.optimizer.state_dict())


def takes_spoilt(key: str, program: Program, rank: int) -> object:
    return program.optimizer.load_state_dict({**program.optimizer.state_dict(), key: None})


def rows_of_kinds(rank: int, world: int) -> bool:
    """Own rows whose tensors are int32 on half of the ranks, put together: whether that is the whole batch."""
    with program_of("zero3") as program:
        own = cases.share(program, first())
        own = {name: value.int() if rank % 2 else value for name, value in own.items()}
        whole, sizes = whole_batch(program.spec, own, program.axes, program.device)
        return sizes.rows == len(first()["tokens"]) and all(torch.equal(whole[name], x) for name, x in first().items())


def kinds(place: Place) -> str:
    return equal(all(place.pools.of(4).run(rows_of_kinds, timeout_s=30)), "the whole batch on every rank")


def one_goes_on(rank: int, world: int) -> tuple[str, float]:
    """After a call that ranks disagree on, all of them train on."""
    with program_of("dp2 tp2") as program:
        said = ""
        try:
            alone(gathers, 0, program, rank)
        except AutoplanError as error:
            said = str(error)
        return said, program.step(first()).item()


def goes_on(place: Place) -> str:
    found = place.pools.of(4).run(one_goes_on, timeout_s=30)
    return equal(all(said for said, _ in found) and len({loss for _, loss in found}) == 1, found[0][0])


def unasked(rank: int, world: int) -> bool:
    with program_of("dp2 tp2") as program:
        before = [h.values.clone() for h in program.held]
        program.agreement.called(Call("evaluate", 0))
        return all(map(torch.equal, before, [h.values for h in program.held]))


def asking(place: Place) -> str:
    return equal(all(place.pools.of(4).run(unasked)), "asking changes nothing")


class Norm(nn.Module):
    """As nanoGPT's author writes it: without reset_parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


class Unfilled(nn.Module):
    """Linear layers around a norm of one's own; one tensor is never read."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(8, 8), Norm(8), nn.Linear(8, 8)
        self.tied, self.drop = nn.Parameter(torch.randn(8, 8)), nn.Dropout(drop)
        self.again, self.unread = self.tied, nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.inner(x) @ self.tied))) @ self.again


def on_meta(**options: float) -> Unfilled:
    with torch.device("meta"):
        return Unfilled(**options)


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 8, generator=generator)


def plan_of(model: nn.Module, training: Training | Inference | None = None, loss: bool = True) -> autoplan.Plan:
    training = training or Training(learning_rate=1e-2, compile=False)
    options = {"loss_fn": functional.mse_loss} if loss else {}
    return parallelize_alone(
        model, "1x2 cpu", rows() if loss else rows()[:1], training=training, parallelism=SPLIT, **options
    )


def verified(drop: float, *words: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        text = str(plan_of(on_meta(drop=drop)).verify())
        return equal(text.startswith("equal") and all(word in text for word in words), text.splitlines()[0])

    return run


def verified_forward(place: Place) -> str:
    text = str(plan_of(on_meta(), Inference(), loss=False).verify())
    return equal(text.startswith("equal") and "from random weights" in text, text.splitlines()[0])


def half_real(place: Place) -> str:
    """Values that the user did set stay those of the reference."""
    model = on_meta()
    model.norm.weight = nn.Parameter(torch.full((8,), 3.0))
    drawn, told = drawn_values(model, plan_of(on_meta()).record.model, 0)
    found = reference_of(model, 0, drawn)
    if "norm.weight" in drawn or "norm.bias" not in drawn or "tied" not in told:
        raise Silent(f"drawn: {sorted(drawn)}; told: {told}")
    right = bool((found.norm.weight == 3).all()) and found.tied is found.again
    return equal(right and found.unread.dtype == torch.float64, "what is there stays, ties too; the rest is drawn")


def real_untouched(place: Place) -> str:
    values, told = drawn_values(Unfilled(), plan_of(Unfilled()).record.model, 0)
    return equal((values, told) == ({}, ""), "nothing is drawn of a model that holds values")


def other_call(name: str, act: Callable[[Program], object], call: str, plan: str = "dp2 tp2", rank: int = 0) -> Attack:
    return all_told(name, WAITS, plan, partial(alone, act, rank), f"program.{call} on rank {rank}", "program.step on")


ATTACKS: tuple[Attack, ...] = (
    other_call("evaluate on one rank, tp", evaluates, "evaluate"),
    other_call("evaluate on one stage, pipeline", evaluates, "evaluate", "pp2 dp2", 3),
    other_call("evaluate on one rank, ZeRO-3", evaluates, "evaluate", "zero3", 2),
    other_call("save_weights on rank 0 alone", saves_weights, "save_weights"),
    other_call("save_checkpoint on rank 0 alone", saves_checkpoint, "save_checkpoint", "zero3"),
    other_call("load_checkpoint on one rank alone", loads_checkpoint, "load_checkpoint", rank=1),
    other_call("full_state_dict on rank 0 alone", gathers, "full_state_dict", "zero3"),
    other_call("init_weights on one rank alone", initialises, "init_weights", rank=3),
    other_call("load_state_dict on one rank alone", loads_own_state, "load_state_dict", "pp2 dp2", 1),
    all_told("full_grads beside evaluate", WAITS, "dp2 tp2", prints_gradients, "program.full_grads on rank 0"),
    all_told("evaluate at another step", APART, "dp2 tp2", evaluates_a_step_behind, "step 2 on rank 3"),
    all_told("no state for the optimizer", "it fails inside torch", "dp2 tp2", partial(takes_state, None, 0),
             "a program's optimizer"),
    all_told("a list for the optimizer's state, on one rank", "the others load theirs", "zero3",
             partial(takes_state, [1], 2), "a program's optimizer"),
    all_told("an optimizer's state of None", "it fails inside torch", "dp2 tp2", partial(takes_spoilt, "state"),
             "its state is of type NoneType"),
    all_told("an optimizer's state without the program's", "it fails inside torch", "dp2 tp2",
             partial(takes_spoilt, "program"), "its program is of type NoneType"),
    Attack("ranks", "own rows to evaluate, int32 on half of the ranks", "rows are read as others", kinds),
    Attack("ranks", "training after a call that ranks disagreed on", "the next collective hangs", goes_on),
    Attack("ranks", "asking alone", "it changes parameters", asking),
    Attack("model", "verify: meta, a norm without reset_parameters", "it fails, and the plan isn't verified",
           verified(0.0, "from random weights, for tied")),
    Attack("model", "verify: the same with dropout", "it fails, and the plan isn't verified",
           verified(0.5, "same program on one rank")),
    Attack("inference", "verify: the same, forward alone", "it fails, and the plan isn't verified", verified_forward),
    Attack("model", "verify: a meta model of which some values are set", "they are drawn anew", half_real),
    Attack("model", "verify: a model with values", "other weights are compared", real_untouched),
)  # fmt: skip
