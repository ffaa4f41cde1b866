"""Groups of parameters with options of their own: as torch's param_groups on one device, by the user's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.cli.typed_words import training as training_of
from autoplan.errors import ParallelismError
from autoplan.export.folder import plan_text
from autoplan.ir.parameter_groups import ParameterGroup
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.optim.optimizer_options import check_optimizer
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.planning import parallelize_alone
from tests.support.records import parse_plan
from tests.support.sampling import sampled

RATE, STEPS = 1e-2, 3
PLANS = {
    "zero1": dict(dp=4, zero=1, microbatches=2),
    "tp2 dp2 zero3": dict(dp=2, tp=2, zero=3),
    "pp2 tp2, tied": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
    "offload": dict(tp=2, dp=2, zero=1, offload="optimizer"),
}
GROUPS = (
    {"match": "*.bias|*.scale", "weight_decay": 0.0, "lr": 5e-3},
    {"match": "head.weight", "learning_rate": 2e-2},  # the second name of a tied one
    {"match": "*gate_up*", "weight_decay": 0.5},  # a fused projection that lies here in two pieces
)


def how(optimizer: str, **fields: object) -> Training:
    fields = {"weight_decay": 0.1, "groups": GROUPS} | fields
    return Training(optimizer=optimizer, precision="fp64", learning_rate=RATE, compile=False, **fields)  # type: ignore[arg-type]


TRAININGS = {
    "adamw": how("adamw", clip_grad_norm=0.5),
    "sgd": how("sgd", momentum=0.9, lr_schedule=LRSchedule("linear", steps=4)),
    "lamb": how("lamb"),
    "muon": how("muon", lr_schedule=LRSchedule("cosine", steps=5)),
    "adafactor": how("adafactor"),
}


def groups_by_hand(model: nn.Module) -> list[dict]:
    """The same as ``GROUPS`` as one would write it for torch."""
    named = dict(model.named_parameters(remove_duplicate=False))
    taken: set[nn.Parameter] = set()
    found = []
    for group in GROUPS:
        mine = [p for n, p in named.items() if any(fnmatchcase(n, one) for one in group["match"].split("|"))]
        mine = [p for p in mine if p not in taken]
        taken |= set(mine)
        options = {"lr" if name == "learning_rate" else name: v for name, v in group.items() if name != "match"}
        found.append({"params": mine, **options})
    return [{"params": [p for p in model.parameters() if p not in taken]}, *found]


def one_device(name: str, training: Training) -> Mapping[str, Tensor]:
    model = tiny.reference()
    groups = groups_by_hand(model)
    if name == "lamb":
        optimizers: list = [build_optimizer(model.named_parameters(remove_duplicate=False), training)]
    elif name == "muon":
        matrices = [{**group, "params": [p for p in group["params"] if p.ndim == 2]} for group in groups]
        others = [{**group, "params": [p for p in group["params"] if p.ndim != 2]} for group in groups]
        optimizers = [torch.optim.Muon(matrices, lr=RATE, weight_decay=0.1)]
        optimizers += [torch.optim.AdamW(others, lr=RATE, weight_decay=0.1)]
    else:
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}[name]
        momentum = {"momentum": 0.9} if name == "sgd" else {}
        optimizers = [kind(groups, lr=RATE, weight_decay=0.1, **momentum)]
    shapes = {"sgd": lambda t: 1 - t / 4, "muon": lambda t: (1 + math.cos(math.pi * t / 5)) / 2}
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, shapes[name]) for o in optimizers if name in shapes]
    for batch in tiny.batches(STEPS):
        model.zero_grad()
        model(**batch).backward()
        if training.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_grad_norm)
        for each in (*optimizers, *schedulers):
            each.step()
    return model.state_dict()


def on_a_rank(rank: int, world: int, plan: dict, training: Training) -> tuple[Mapping[str, Tensor], list]:
    spec = tiny.spec(**plan, training=training)
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        titles = [group["name"] for group in program.optimizer.param_groups]
        for batch in tiny.batches(STEPS):
            program.step(batch)
            program.optimizer.step()
        return dict(program.full_state_dict()), list(dict.fromkeys(titles))


CASES = [(name, plan) for name in TRAININGS for plan in ("tp2 dp2 zero3", "pp2 tp2, tied")]
CASES += [("adamw", "zero1"), ("adamw", "offload"), ("muon", "zero1")]
QUICK = [("adamw", "zero1"), ("adamw", "offload"), *((name, "pp2 tp2, tied") for name in ("adafactor", "muon", "lamb"))]


@pytest.mark.parametrize(("name", "plan"), sampled(CASES, QUICK))
def test_a_group_is_updated_as_on_one_device(pool: RankPool, name: str, plan: str) -> None:
    training = TRAININGS[name]
    wanted, plain = one_device(name, training), one_device_without(name)
    results = pool.run(on_a_rank, PLANS[plan], training)
    for key in wanted:
        difference = (results[0][0][key] - wanted[key]).norm() / wanted[key].norm()
        assert difference < 1e-9, f"{key} differs by {difference:.1e} of its norm"
    assert any(not torch.allclose(wanted[key], plain[key], rtol=1e-6) for key in wanted)
    for _, titles in results:
        assert titles == ["default", "*.bias|*.scale", "head.weight", "*gate_up*"]


def one_device_without(name: str) -> Mapping[str, Tensor]:
    model = tiny.reference()
    optimizer = build_optimizer(model.parameters(), how(name, groups=()))
    for batch in tiny.batches(STEPS):
        optimizer.zero_grad()
        model(**batch).backward()
        optimizer.step()
    return model.state_dict()


def rates_after(rank: int, world: int, schedule: LRSchedule | None) -> list[tuple[float, float]]:
    """The rates of the first two groups before, under another learning rate, and after an update."""
    with Program(tiny.spec(dp=4, zero=1, training=how("adamw", lr_schedule=schedule)), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())
        found = []

        def note() -> None:
            rates = {group["name"]: group["lr"] for group in program.optimizer.param_groups}
            found.append((rates["default"], rates["*.bias|*.scale"]))

        note()
        program.set_learning_rate(0.1)
        note()
        program.step(next(tiny.batches(1)))
        program.optimizer.step()
        note()
        if program.updates.rates is not None:
            kept = program.updates.rates.state_dict()
            program.set_learning_rate(7.0)
            program.updates.rates.load_state_dict(kept)
            note()
        return found


@pytest.mark.parametrize("schedule", [None, LRSchedule("linear", steps=2), LRSchedule("ReduceLROnPlateau")])
def test_a_rate_of_its_own_keeps_its_share(pool: RankPool, schedule: LRSchedule | None) -> None:
    share = 0.5 if schedule is not None and schedule.steps else 1.0
    for found in pool.run(rates_after, schedule):
        assert found[0] == (RATE, 5e-3)
        assert found[1] == pytest.approx((0.1, 0.05))
        assert all(later == pytest.approx((0.1 * share, 0.05 * share)) for later in found[2:])


ONE_CYCLE = LRSchedule("OneCycleLR", options={"max_lr": 1, "total_steps": 9})


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)).square().mean()


def planned(training: Training) -> autoplan.Plan:
    return parallelize_alone(Small(), "1x2 cpu", (torch.randn(4, 8),), training=training, parallelism="ddp")


def test_a_predicate_is_kept_as_names_and_a_plan_holds_its_groups() -> None:
    def no_decay(name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim < 2 and parameter.is_meta

    groups = ({"match": "norm.weight", "lr": 0.5}, ParameterGroup(no_decay, {"weight_decay": 0.0}))
    plan = planned(Training(groups=groups))
    first, second = plan.record.training.groups  # type: ignore[union-attr]
    assert (first.match, first.names) == ("norm.weight", ())
    assert (second.match, second.names) == ("no_decay", ("norm.weight", "norm.bias", "linear.bias"))
    said = "norm.weight: 1 parameter with lr=0.5, no_decay: 2 parameters with weight_decay=0.0"
    assert said in plan.report(verbose=True)
    assert plan.verify().passed
    again = parse_plan(plan_text(plan.record, ""), "plan.json")
    assert again.training == plan.record.training
    assert plan.what_if(batch=8).record.training == plan.record.training


def test_the_report_tells_of_patterns_that_match_nothing() -> None:
    plan = planned(Training(groups=({"match": "*norm*|*.beta", "weight_decay": 0.0},)))
    assert "*norm*|*.beta: 2 parameters with weight_decay=0.0 (nothing matches *.beta)" in plan.report(verbose=True)


def test_the_command_line_takes_groups() -> None:
    found = training_of(["groups=[{'match': '*norm*', 'weight_decay': 0.0}]"])
    assert found is not None and found.groups == (ParameterGroup("*norm*", {"weight_decay": 0.0}),)
    one = training_of(["groups={'match': '*norm*', 'weight_decay': 0.0}"])
    assert one == found


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (({"match": "*.bias"},), "the group '*.bias': it has no options"),
        (({"weight_decay": 0.0},), "groups: {'weight_decay': 0.0}: a group says which parameters it matches"),
        (("*.bias",), "groups: '*.bias': a group says which parameters"),
        (({"match": "", "lr": 0.1},), "match='': a group matches by a pattern or a predicate"),
        (({"match": "*|", "lr": 0.1},), "match='*|'"),
        (({"match": "*", "lr": 0.1, "learning_rate": 0.1},), "lr and learning_rate are one"),
        (({"match": "*", "lr": torch.ones(1)},), "plan.json holds plain data alone"),
    ],
)
def test_what_is_no_group_is_refused(groups: tuple, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        Training(groups=groups)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (Training(groups=({"match": "*", "weight_decy": 0.0},)), "adamw has no weight_decy: it takes"),
        (Training(groups=({"match": "*", "lr": -1.0},)), "Invalid learning rate"),
        (Training(groups=({"match": "*", "amsgrad": True},)), "would keep other state of these parameters"),
        (Training(optimizer="sgd", groups=({"match": "*", "momentum": 0.9},)), "would keep other state"),
        (
            Training(groups=({"match": "*", "lr": 0.1},), lr_schedule=ONE_CYCLE),
            "OneCycleLR gives all groups the same, so lr would not count",
        ),
    ],
)
def test_what_an_optimizer_does_not_take_of_a_group_is_said(training: Training, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        check_optimizer(training)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (({"match": "linaer.*", "lr": 0.1},), "the group 'linaer.*': no parameter of the model matches it. names here"),
        (({"match": "linaer.*", "lr": 0.1},), "are for example linear."),
        (({"match": "*", "lr": 0.1}, {"match": "*.bias", "lr": 0.2}), "belongs to '*', which stands before it"),
        ((ParameterGroup(lambda name, p: False, {"lr": 0.1}),), "it is true of no parameter of the model"),
    ],
)  # fmt: skip
def test_a_group_without_members_is_refused(groups: tuple, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        planned(Training(groups=groups))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ParameterGroup("*", weight_decay=0.1), "ParameterGroup has no 'weight_decay'. write options={"),
        (lambda: ParameterGroup("*", lr=0.1), "{'match': …, 'lr': …}"),
        (lambda: ParameterGroup(params=[], lr=0.1), "write match='*norm*|*.bias', patterns over the parameters' names"),
        (lambda: ParameterGroup(), "missing a required argument: 'match'. it takes match, options, names"),
        (lambda: ParameterGroup("*", {"lr": 0.1}, (), None, 1), "too many positional arguments"),
        (lambda: ParameterGroup("*", 0.1), "they are values by name"),
        (lambda: ParameterGroup("*", {"lr": 0.1}, "weight"), "leave them out: planning fills them in"),
        (lambda: ParameterGroup("*", {"lr": 0.1}, 5), "leave them out: planning fills them in"),
        (lambda: Training(groups=({"match": "*", "options": 5},)), "they are values by name"),
    ],
)
def test_a_group_that_is_none_says_what_to_write(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        make()
    assert said in str(error.value)
