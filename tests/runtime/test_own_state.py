"""state_dict and load_state_dict of a program and its optimizer: bit for bit, or an error that changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from autoplan.errors import ParallelismError, WeightsError
from autoplan.lower.resized import microbatch_count
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Parallelism, Training
from autoplan.runtime.parallel.sharded_parameter import local
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.forwards import loaded
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled

PLANS = {
    "zero3 tp2": dict(dp=2, tp=2, zero=3),
    "pp2 dp2 zero1, tied": dict(pp=2, dp=2, microbatches=2, zero=1),
    "offload": dict(tp=2, dp=2, zero=2, offload="optimizer"),
    "dp4": dict(dp=4),
}


def how(optimizer: str) -> Training:
    groups, schedule = ({"match": "*bias", "lr": 5e-3},), LRSchedule("cosine", steps=9)
    return Training(optimizer, "fp64", 1e-2, lr_schedule=schedule, groups=groups, compile=False)  # type: ignore[arg-type]


def made(plan: dict, training: Training) -> Program:
    spec = tiny.spec(**plan, training=training)
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().state_dict())
    return program


def trained(program: Program, batches: list) -> dict[str, Tensor]:
    for batch in batches:
        program.step(batch)
        program.optimizer.step()
    return {name: local(value).clone() for name, value in program.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def round_trip(rank: int, world: int, plan: dict, optimizer: str) -> tuple[bool, bool, bool, bool, int]:
    """Whether two states bring back two steps of four: here, in another program, and again from the same states."""
    batches = list(tiny.batches(4))
    with made(plan, how(optimizer)) as program:
        trained(program, batches[:2])
        state = {name: value.clone() for name, value in program.state_dict().items()}
        moments = copy.deepcopy(program.optimizer.state_dict())
        wanted = trained(program, batches[2:])
        program.load_state_dict(state)
        program.optimizer.load_state_dict(moments)
        here = same(trained(program, batches[2:]), wanted)
        sharded = all(isinstance(state[h.name], DTensor) for h in program.held)
    with made(plan, how(optimizer)) as program:
        program.load_state_dict(state)
        program.optimizer.load_state_dict(moments)
        steps = program.steps
        there = same(trained(program, batches[2:]), wanted)
        program.load_state_dict(state)
        program.optimizer.load_state_dict(moments)
        again = same(trained(program, batches[2:]), wanted)
    return here, there, again, sharded, steps


CASES = [("adamw", plan) for plan in PLANS] + [("muon", "zero3 tp2"), ("adafactor", "pp2 dp2 zero1, tied")]
QUICK = [("muon", "zero3 tp2"), ("adamw", "pp2 dp2 zero1, tied")]


@pytest.mark.parametrize(("optimizer", "plan"), sampled(CASES, QUICK))
def test_they_bring_back_what_was_bit_for_bit(pool: RankPool, optimizer: str, plan: str) -> None:
    assert pool.run(round_trip, PLANS[plan], optimizer) == [(True, True, True, True, 2)] * 4


def averaged(rank: int, world: int, plan: dict) -> float:
    """An average of the weights of three steps, kept by the keys of the state, and read back whole."""
    with made(plan, how("adamw")) as program:
        mean = {name: value.clone() for name, value in program.state_dict().items()}
        whole = [dict(program.full_state_dict())]
        for batch in tiny.batches(2):
            trained(program, [batch])
            whole.append(dict(program.full_state_dict()))
            with torch.no_grad():
                for name, value in program.state_dict().items():
                    mean[name].lerp_(value, 1 / len(whole))
        program.load_state_dict(mean)
        found = dict(program.full_state_dict())
        wanted = {name: torch.stack([one[name] for one in whole]).mean(0) for name in found}
        return max((float((found[name] - wanted[name]).abs().max()) for name in found), default=0.0)


def test_an_average_of_weights_is_kept_by_its_keys(pool: RankPool) -> None:
    assert max(pool.run(averaged, PLANS["zero3 tp2"])) < 1e-12
    assert max(pool.run(averaged, PLANS["pp2 dp2 zero1, tied"])) < 1e-12


def through_torchs_checkpoint(rank: int, world: int, plan: dict, other: dict, folder: str) -> float:
    """Saved by torch.distributed.checkpoint, read into another plan of the same model."""
    with made(plan, how("adamw")) as program:
        trained(program, list(tiny.batches(2)))
        dcp.save(program.state_dict(), checkpoint_id=folder)
        wanted = dict(program.full_state_dict())
    with made(other, how("adamw")) as program:
        state = program.state_dict()
        dcp.load(state, checkpoint_id=folder)
        program.load_state_dict(state)
        found = dict(program.full_state_dict())
        return max((float((found[name] - wanted[name]).abs().max()) for name in found), default=0.0)


def written_by_every_rank(rank: int, world: int, folder: str) -> str:
    """What a rank is told that writes the whole state to the path of all; "" where it has written."""
    with made(PLANS["zero3 tp2"], how("adamw")) as program:
        state = program.full_state_dict()
        try:
            torch.save(state, Path(folder) / f"{rank}.pt")
        except WeightsError as error:
            return str(error)
        return ""


def test_an_empty_state_is_not_written_over_the_whole_one(pool: RankPool, tmp_path: Path) -> None:
    first, *others = pool.run(written_by_every_rank, str(tmp_path))
    assert first == "" and torch.load(tmp_path / "0.pt").keys() == tiny.reference().state_dict().keys()
    assert all("which would write an empty file" in said and "state_dict(full=True)" in said for said in others)


def test_torch_s_checkpoint_takes_them_to_another_plan(pool: RankPool, tmp_path: Path) -> None:
    first, second = PLANS["pp2 dp2 zero1, tied"], PLANS["zero3 tp2"]
    assert pool.run(through_torchs_checkpoint, first, second, str(tmp_path / "a")) == [0.0] * 4
    assert pool.run(through_torchs_checkpoint, second, first, str(tmp_path / "b")) == [0.0] * 4


def on_one(rank: int, change: Callable) -> Callable:
    return lambda state: change(state) if dist.get_rank() == rank else state


def without(state: dict) -> dict:
    return {name: value for name, value in state.items() if name != "layers.0.scale"}


MODEL_CASES = [
    (on_one(1, without), "it lacks layers.0.scale"),
    (lambda state: state | {"ema": torch.ones(1)}, "ema isn't in this rank's"),
    (on_one(2, lambda state: state | {"layers.0.scale": 3.0}), "layers.0.scale of type float: it is no tensor"),
    (lambda state: state | {"layers.0.scale": local(state["layers.0.scale"])}, "layers.0.scale: ("),
    (lambda state: state | {"layers.0.scale": state["layers.0.scale"].float()}, "layers.0.scale: (5,) torch.float32"),
    (lambda state: state | {"shift": torch.ones(3, dtype=torch.float64)}, "shift: (3,) torch.float64"),
    (lambda state: [], "a state of type list: it is no mapping"),
]
OPTIMIZER_CASES = [
    (on_one(3, lambda state: {"state": {}, "param_groups": []}), "it isn't one of a program's optimizer"),
    (lambda state: state | {"names": state["names"][::-1]}, "has them in another order"),
    (on_one(0, lambda state: state | {"names": ["a", *state["names"][1:]]}), "it is of other parameters"),
    (lambda state: state | {"program": {"steps": 1}}, "only one of it and this plan has a schedule"),
    (lambda state: state | {"param_groups": state["param_groups"][:1]}, "its groups and how many parameters they have"),
    (lambda state: state | {"state": {99: {}}}, "it has a parameter 99"),
    (on_one(1, lambda state: state | {"state": {0: {"exp_avg": torch.ones(2, 2)}}}), "exp_avg of "),
]


def refused(rank: int, world: int) -> list[tuple[str, bool]]:
    with made(PLANS["zero3 tp2"], how("adamw")) as program:
        trained(program, list(tiny.batches(1)))
        found = []
        loads = [(program.state_dict, program.load_state_dict, change) for change, _ in MODEL_CASES]
        optimizer = program.optimizer
        loads += [(optimizer.state_dict, optimizer.load_state_dict, change) for change, _ in OPTIMIZER_CASES]
        before = copy.deepcopy(optimizer.state_dict())
        values = {name: local(value).clone() for name, value in program.state_dict().items()}
        for read, load, change in loads:
            try:
                load(change(dict(read())))  # type: ignore[arg-type]
                text = ""
            except WeightsError as error:
                text = str(error)
            now = {name: local(value) for name, value in program.state_dict().items()}
            moments = optimizer.state_dict()
            kept = same(now, values) and str(moments) == str(before)
            found.append((text, kept))
        return found


def test_what_does_not_fit_is_refused_on_every_rank_and_changes_nothing(pool: RankPool) -> None:
    results = pool.run(refused)
    for place, (_, said) in enumerate([*MODEL_CASES, *OPTIMIZER_CASES]):
        for found in results:
            text, kept = found[place]
            assert said in text
            assert kept


class Plain(nn.Module):
    """Without a parameter, and long enough to be a stage."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.softmax(x @ x.transpose(-1, -2), -1) @ x
        return x


class Ending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(16, 16), nn.ModuleList(Plain() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for part in self.rest:
            x = part(x)
        return x


def without_parameters(rank: int, world: int, folder: str, weights: dict[str, Tensor]) -> tuple[int, bool]:
    """How many parameters a rank holds, and whether its own part and whole tensors come back."""
    program = loaded(folder, weights)
    own = {name: value.clone() for name, value in program.state_dict().items()}
    program.load_state_dict(own)
    program.load_state_dict(program.state_dict(full=True))
    assert type(copy.copy(program.state_dict())) is type(program.state_dict())
    here, there = ({name: local(value) for name, value in state.items()} for state in (own, program.state_dict()))
    return len(program.held), same(here, there)


@pytest.mark.slow
def test_a_stage_without_parameters_takes_its_part(pool: RankPool, tmp_path: Path) -> None:
    model, batch = Ending(), (torch.randn(4, 8, 16), torch.randn(4, 8, 16))
    pins = Parallelism(dp=2, tp=1, pp=2, micro_batch=1)
    plan = parallelize_unproved(model, "1x4 cpu", batch, loss_fn=functional.mse_loss, parallelism=pins)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    found = pool.run(without_parameters, str(plan.export(tmp_path / "out")), weights)
    assert sorted(held for held, _ in found) == [0, 0, 2, 2] and all(back for _, back in found)
    with pytest.raises(ParallelismError, match="a batch of 0 rows: there is nothing to train on"):
        microbatch_count(plan.record.chosen, 4, 0, True)
