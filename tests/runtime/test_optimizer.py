"""Every optimizer over parts of parameters equals one device: torch's own class, or the formula, over whole ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan.cost.step import in_one_pass, optimizer_states
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, Parameter, TensorType
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer, elementwise
from autoplan.runtime.optim.optimizer import in_one_pass as asked_of_torch
from autoplan.runtime.optim.optimizer_options import check_optimizer, known_classes, options
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.optimizer_runs import part_of_a_run
from tests.support.sampling import sampled

STEPS, RATE = 3, 1e-2
PLANS = {
    "zero1": dict(dp=4, zero=1, microbatches=2),
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "tp2 dp2": dict(tp=2, dp=2),
    "tp2 dp2 zero3": dict(tp=2, dp=2, zero=3),
    "pp2 dp2 zero1, tied": dict(pp=2, dp=2, microbatches=2, zero=1),
    "pp2 tp2, tied": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
    "interleaved": dict(pp=2, dp=2, microbatches=2, virtual_stages=2, pipeline_schedule="interleaved"),
    "tp2 dp2 zero1 offload": dict(tp=2, dp=2, zero=1, offload="optimizer"),
}
FEW = ("tp2 dp2 zero3", "pp2 tp2, tied")


def training(name: str, **fields: object) -> Training:
    return Training(optimizer=name, precision="fp64", learning_rate=RATE, compile=False, **fields)  # type: ignore[arg-type]


MAIN = {
    "adamw": training("adamw", optimizer_options={"amsgrad": True}),
    "sgd": training("sgd", momentum=0.9, optimizer_options={"nesterov": True}),
    "lamb": training("lamb", weight_decay=0.1),
    "adafactor": training("adafactor", clip_grad_norm=0.5),
    "muon": training("muon", weight_decay=0.1),
    "rowwise-adagrad": training("rowwise-adagrad", eps=1e-6),
}
OTHERS = {
    "adadelta": training("adadelta"), "adagrad": training("adagrad"), "adam": training("adam", betas=(0.8, 0.99)),
    "adamax": training("adamax"), "asgd": training("asgd"), "nadam": training("nadam"), "radam": training("radam"),
    "rmsprop": training("rmsprop", momentum=0.5, optimizer_options={"centered": True}), "rprop": training("rprop"),
}  # fmt: skip
SEE_WHOLES = ("lamb", "adafactor", "muon", "rowwise-adagrad")
CASES = [(name, plan) for name in SEE_WHOLES for plan in PLANS]
CASES += [(name, plan) for name in ("adamw", "sgd") for plan in (*FEW, "zero1", "zero3")]
CASES += [(name, "tp2 dp2 zero3") for name in OTHERS]
# each plan but one, the simplest; each optimizer that sees wholes; of torch's those whose states differ in kind
QUICK = [
    ("lamb", "interleaved"), ("muon", "tp2 dp2 zero1 offload"), ("muon", "pp2 tp2, tied"),
    ("adafactor", "tp2 dp2 zero3"), ("rowwise-adagrad", "tp2 dp2 zero3"), ("rowwise-adagrad", "pp2 tp2, tied"),
]


def on_a_rank(rank: int, world: int, plan: dict, how: Training) -> tuple[Mapping[str, Tensor], tuple[int, int]]:
    spec = tiny.spec(**plan, training=how)
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        for batch in tiny.batches(STEPS):
            program.step(batch)
            program.optimizer.step()
        return dict(program.full_state_dict()), elements(program)


def elements(program: Program) -> tuple[int, int]:
    """(elements of state that this rank keeps, what the plan's memory counts for them)."""
    how, found = program.spec.training, 0
    for state in program.optimizer.state.values():
        found += sum(local(v).numel() for v in state.values() if isinstance(v, Tensor) and v.ndim)
    parts: dict[str, list[ShardedParameter]] = {}
    for held in program.held:
        parts.setdefault(held.stored.source, []).append(held)
    wanted = 0.0
    for source, pieces in parts.items():
        here, shape = sum(h.values.numel() for h in pieces), dict(tiny.reference().named_parameters())[source].shape
        parameter = Parameter(source, TensorType(tuple(shape), "float64"), source)
        model = Model("", (), (parameter,), (), (), (), (), ())
        if how.optimizer == "adafactor" and len(shape) > 1:
            here = here or 1  # rows and columns are there also where the part is empty
        if how.optimizer == "rowwise-adagrad" and len(shape) > 1:  # who has some columns of a row keeps one for it
            wanted += sum(h.part.shape[0] * (h.part.shape[1] > 0) for h in pieces)
            continue
        wanted += here * optimizer_states(how, model, shape.numel() / here) if here else 0
    return found, round(wanted)


def one_device(name: str, how: Training) -> Mapping[str, Tensor]:
    model = tiny.reference()
    parameters = list(model.parameters())
    matrices, vectors = [p for p in parameters if p.ndim == 2], [p for p in parameters if p.ndim != 2]
    if name == "lamb":
        optimizers: list = [PlainLamb(parameters)]
    elif name == "rowwise-adagrad":
        optimizers = [PlainRowwise(parameters)]
    elif name == "muon":
        muon = torch.optim.Muon(matrices, lr=RATE, weight_decay=0.1)
        optimizers = [muon, torch.optim.AdamW(vectors, lr=RATE, weight_decay=0.1)]
    else:
        kind = next(value for key, value in vars(torch.optim).items() if key.lower() == name)
        told = {"betas": how.betas, "momentum": how.momentum, "weight_decay": how.weight_decay}
        told = {key: value for key, value in told.items() if value is not None}
        optimizers = [kind(parameters, lr=RATE, **told, **dict(how.optimizer_options))]
    for batch in tiny.batches(STEPS):
        model.zero_grad()
        model(**batch).backward()
        if how.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, how.clip_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
    return model.state_dict()


class PlainLamb:
    """Algorithm 2 of You et al. 2020, line by line."""

    def __init__(self, parameters: list) -> None:
        self.parameters, self.t = parameters, 0
        self.m, self.v = ([torch.zeros_like(p) for p in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        for i, x in enumerate(self.parameters):
            self.m[i] = 0.9 * self.m[i] + (1 - 0.9) * x.grad
            self.v[i] = 0.999 * self.v[i] + (1 - 0.999) * x.grad**2
            m, v = self.m[i] / (1 - 0.9**self.t), self.v[i] / (1 - 0.999**self.t)
            r = m / (v.sqrt() + 1e-6)
            x -= RATE * x.norm() / (r + 0.1 * x).norm() * (r + 0.1 * x)


class PlainRowwise:
    """One accumulator for each row of a matrix, for each element of a vector."""

    def __init__(self, parameters: list) -> None:
        self.parameters = parameters
        self.a = [torch.zeros(len(p), dtype=torch.float64) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for a, w in zip(self.a, self.parameters, strict=True):
            a += (w.grad**2).view(len(w), -1).mean(1)
            w -= RATE * w.grad / (a.sqrt() + 1e-6).view(-1, *[1] * (w.ndim - 1))


@pytest.mark.parametrize(("name", "plan"), sampled(CASES, QUICK))
def test_parts_are_updated_as_the_whole_is(pool: RankPool, name: str, plan: str) -> None:
    how = (MAIN | OTHERS)[name]
    wanted = one_device(name, how)
    results = pool.run(on_a_rank, PLANS[plan], how)
    found = results[0][0]
    assert found.keys() == wanted.keys()
    for key in wanted:
        difference = (found[key] - wanted[key]).norm() / wanted[key].norm()
        assert difference < 1e-9, f"{key} differs by {difference:.1e} of its norm"
    for _, (kept, counted) in results:
        assert kept == counted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "adafactor", "muon", "rprop", "rowwise-adagrad"])
def test_another_plan_goes_on_with_what_an_optimizer_kept(pool: RankPool, tmp_path: Path, name: str) -> None:
    how, folder = (MAIN | OTHERS)[name], str(tmp_path / "c")
    first, then = FEW if name in ("lamb", "adafactor") else FEW[::-1]
    pool.run(part_of_a_run, PLANS[first], how, folder, 0, 2)
    found = pool.run(part_of_a_run, PLANS[then], how, folder, 2, 4)[0]
    wanted = pool.run(part_of_a_run, PLANS[first], how, folder, 0, 4)[0]
    for key in wanted:
        difference = (found[key] - wanted[key]).norm() / wanted[key].norm()
        assert difference < 1e-9, f"{key} differs by {difference:.1e} of its norm"


ASKED: tuple[dict[str, bool | None], ...] = (
    {}, {"foreach": False}, {"foreach": True}, {"foreach": None}, {"fused": False}, {"fused": True},
    {"maximize": True},
)  # fmt: skip


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_account_says_in_one_pass_where_the_runtime_asks_for_it(name: str, asked: dict[str, bool | None]) -> None:
    kind = known_classes()[name]
    told = training(name, optimizer_options=asked)
    given = options(kind, told)
    found = asked_of_torch(kind, given, [torch.nn.Parameter(torch.zeros(1))]) | given
    assert in_one_pass(told) == bool(found.get("fused"))


@pytest.mark.parametrize("own", [{"fused": False}, {"fused": True}, {"foreach": True}, {"weight_decay": 0.0}], ids=str)
@pytest.mark.parametrize("asked", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_the_account_says_in_one_pass_where_every_group_is_updated_so(asked: dict[str, bool], own: dict) -> None:
    told = training("adamw", optimizer_options=asked, groups=[{"match": "*bias", **own}])
    kind, given = known_classes()["adamw"], options(known_classes()["adamw"], told)
    parameters = [[torch.nn.Parameter(torch.zeros(1))] for _ in range(2)]
    made = elementwise(kind, told, parameters, asked_of_torch(kind, given, parameters[0]) | given)
    assert in_one_pass(told) == all(group["fused"] for group in made.param_groups)


def test_an_update_that_is_to_have_gradients_itself_is_refused() -> None:
    for name in ("adamw", "sgd", "rmsprop"):
        group, asked = {"match": "*bias", "differentiable": True}, {"differentiable": True}
        with pytest.raises(ParallelismError, match=r"'\*bias' with differentiable=True: .*leave differentiable out"):
            check_optimizer(training(name, groups=[group]))
        with pytest.raises(ParallelismError, match=rf"{name} with .*differentiable=True: .*leave differentiable out"):
            check_optimizer(training(name, optimizer_options=asked))


def test_every_class_of_torch_is_run_here_or_refused() -> None:
    assert set(MAIN) | set(OTHERS) == set(known_classes())
    for name, how in (MAIN | OTHERS).items():
        check_optimizer(how)
        assert build_optimizer(tiny.reference().parameters(), how).param_groups[0]["lr"] == RATE, name


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Training(optimizer="lbfgs"), "optimizer='lbfgs': it computes loss and gradients many times in one update"),
        (Training(optimizer="sparseadam"), "optimizer='sparseadam': it takes sparse gradients alone"),
        (Training(optimizer="Adam"), "optimizer='Adam': it isn't an optimizer of torch.optim by its lower-case name"),
        (Training(optimizer="optimizer"), "optimizer='optimizer': it isn't an optimizer"),
        (Training(momentum=0.9), "momentum=0.9: AdamW has no momentum: it takes lr, betas, eps, weight_decay, amsgrad"),
        (Training(optimizer_options={"nesterov": True}), "optimizer_options nesterov=True: AdamW has no nesterov"),
        (Training(eps=1e-6, optimizer_options={"eps": 1e-7}), "optimizer_options eps=1e-07: eps=1e-06 says another"),
        (Training(optimizer="sgd", optimizer_options={"nesterov": True}), "sgd with lr=0.001, nesterov=True: Nesterov"),
        (Training(optimizer="adafactor", eps=1e-8), "adafactor with lr=0.001, eps=1e-08"),
        (Training(optimizer="muon", optimizer_options={"adjust_lr_fn": "no"}), "muon with lr=0.001, adjust_lr_fn='no'"),
    ],
)
def test_what_an_optimizer_does_not_take_is_said_before_anything_is_traced(how: Training, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        check_optimizer(how)
    assert str(error.value).startswith(said)
