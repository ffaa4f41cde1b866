"""Attacks on the forward alone of a training plan: ``program.evaluate``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplan import Parallelism, Training
from autoplan.export.folder import opened, write_folder
from autoplan.ir.record import UNKNOWN
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Place, Silent, equal, refused
from tests.support import forwards, zoo
from tests.support.forwards import Batch, Branching, Planned, evaluate, evaluate_own, features, planned, relative
from tests.support.planning import parallelize_alone

DATA = {"dp": 2, "tp": 1, "pp": 1}
TENSOR = {"dp": 1, "tp": 2, "pp": 1}
STAGES = {"dp": 1, "tp": 1, "pp": 2}


class Dropping(nn.Module):
    """Half of all is dropped in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.head = nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.inner(x).relu()))


class Normalising(nn.Module):
    """Batch norm, with running statistics or by the batch's alone."""

    def __init__(self, tracks: bool = True) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(16, 12), nn.BatchNorm1d(12, track_running_stats=tracks)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(x))


class SkippingDepth(nn.Module):
    """Stochastic depth: rows skip a layer in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if self.training:
            hidden = hidden * torch.bernoulli(torch.full_like(x[:, :1], 0.5)) / 0.5
        return self.head(x + hidden)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def plan_of(
    place: Place, make: Callable[[], nn.Module] = zoo.mlp, loss: Callable = functional.mse_loss,
    batch: object = None, cluster: str = "1x2 cpu", **pinned: object,
) -> Planned:  # fmt: skip
    given = features() if batch is None else batch
    return planned(place.folder / "out", seeded(make), given, loss, cluster=cluster, **(pinned or DATA))


def evaluated(place: Place, plan: Planned, *batches: Batch, ranks: int = 2) -> list[list[float]]:
    return place.pools.of(ranks).run(evaluate, str(plan.folder), plan.weights, batches)


def as_alone(place: Place, plan: Planned, *batches: Batch, ranks: int = 2) -> str:
    """Every rank's losses are one device's in evaluation."""
    expected = [plan.loss(batch) for batch in batches]
    found = evaluated(place, plan, *batches, ranks=ranks)
    worst = max(relative(x, y) for each in found for x, y in zip(each, expected, strict=True))
    return equal(worst < forwards.BOUND, f"{worst:.0e} from one device in evaluation: {expected}")


def rows(place: Place, counts: Sequence[int], ranks: int = 2, **options: object) -> str:
    """The first rows of the batch, so many of them."""
    plan = plan_of(place, **options)  # type: ignore[arg-type]
    return as_alone(place, plan, *map(plan.rows, counts), ranks=ranks)


def own_rows(place: Place, *counts: int) -> str:
    """Each rank gives rows of its own, so many of them."""
    plan, first, batches = plan_of(place), 0, []
    for count in counts:
        batches.append(plan.rows(count, first))
        first += count
    expected = plan.loss(plan.rows(first))
    found = place.pools.of(2).run(evaluate_own, str(plan.folder), plan.weights, batches)
    return equal(all(relative(x, expected) < forwards.BOUND for x in found), f"{found}, one device {expected}")


def refused_batches(place: Place, make: Callable[[Planned], Sequence[Batch]], *words: str, **pinned: object) -> str:
    """A batch for each rank, which evaluate has to refuse."""
    plan = plan_of(place, **pinned)  # type: ignore[arg-type]
    pool = place.pools.of(2)
    return refused(lambda: pool.run(evaluate_own, str(plan.folder), plan.weights, make(plan)), *words)


def refused_model(
    place: Place, make: Callable[[], nn.Module], *words: str, loss: Callable = functional.mse_loss
) -> str:
    plan = plan_of(place, make, loss)
    return refused(lambda: evaluated(place, plan, plan.batch), *words)


def refused_rows(
    place: Place, loss: Callable, count: int, *words: str, make: Callable[[], nn.Module] = zoo.mlp, **pinned: object
) -> str:
    """Fewer rows are refused, and the planned ones are as on one device."""
    plan = plan_of(place, make, loss, **pinned)
    as_alone(place, plan, plan.batch)
    return refused(lambda: evaluated(place, plan, plan.rows(count)), *words)


def unchanged(place: Place, make: Callable[[], nn.Module], ranks: int = 2, **pinned: object) -> str:
    """Training beside evaluations is training alone, bit for bit."""
    plan, pool = plan_of(place, make, cluster=f"1x{ranks} cpu", **pinned), place.pools.of(ranks)
    alone = pool.run(forwards.train, str(plan.folder), plan.weights, plan.batch, None)
    beside = pool.run(forwards.train, str(plan.folder), plan.weights, plan.batch, plan.rows(3))
    if not all(kept for _, kept in beside):
        raise Silent(
            "an evaluation changed parameters, gradients, buffers, the optimizer's state, a counter or the RNG"
        )
    return equal([x for x, _ in beside] == [x for x, _ in alone], f"losses of four steps: {alone[0][0]}")


def after_steps(place: Place, **pinned: object) -> str:
    """After two steps it is the loss of the state that would be saved."""
    plan = plan_of(place, **pinned)
    found = place.pools.of(2).run(forwards.train_then_evaluate, str(plan.folder), plan.weights, plan.batch, 2)
    plan.module.load_state_dict(found[0][1])
    expected = plan.loss(plan.batch)
    moved = abs(found[0][0][0] - expected) > 1e-9
    close = all(relative(losses[1], expected) < forwards.BOUND for losses, _ in found)
    return equal(moved and close, f"{[x for x, _ in found]}, one device afterwards {expected}")


def no_gradients(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch) -> tuple[int, bool]:
    program = forwards.loaded(folder, weights)
    loss = program.evaluate(batch)
    return sum(h.gradient is not None for h in program.held), loss.requires_grad


def makes_no_gradients(place: Place) -> str:
    plan = plan_of(place)
    found = place.pools.of(2).run(no_gradients, str(plan.folder), plan.weights, plan.batch)
    return equal(found == [(0, False)] * 2, f"gradients and graphs held: {found}")


def not_finite(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch) -> tuple[float, float]:
    program = forwards.loaded(folder, weights)
    broken = {name: value * torch.nan for name, value in batch.items()}
    lost = float(program.evaluate(broken))
    return lost, float(program.step(batch))


def nan_and_on(place: Place) -> str:
    plan = plan_of(place)
    found = place.pools.of(2).run(not_finite, str(plan.folder), plan.weights, plan.batch)
    return equal(all(math.isnan(x) and math.isfinite(y) for x, y in found), f"evaluated, then trained: {found}")


def all_ignored(place: Place) -> str:
    x, target = features()[0], torch.full((8,), -100)
    plan = plan_of(place, loss=functional.cross_entropy, batch=(x, target))
    found, expected = evaluated(place, plan, plan.batch, plan.rows(3)), plan.loss(plan.batch)
    numbers = [x for losses in found for x in losses]
    return equal(math.isnan(expected) and all(map(math.isnan, numbers)), f"{numbers}, one device {expected}")


def ignored_rows(place: Place) -> str:
    """The first two of three rows are ignored."""
    target = torch.arange(8).masked_fill(torch.arange(8) < 2, -100)
    plan = plan_of(place, loss=functional.cross_entropy, batch=(features()[0], target))
    return as_alone(place, plan, plan.rows(3), plan.rows(5), plan.batch)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, weight=torch.arange(1.0, 13.0, dtype=output.dtype))


def weighted_classes(place: Place) -> str:
    plan = plan_of(place, loss=weighted, batch=(features()[0], torch.arange(8)))
    return as_alone(place, plan, plan.rows(3), plan.rows(7), plan.batch)


def module_stays(place: Place) -> str:
    """Planning and export trace in evaluation; the user's module stays in its mode, part by part."""
    model = seeded(Dropping).train()
    model.drop.eval()
    before = {name: m.training for name, m in model.named_modules()}
    planned(place.folder / "out", model, features(), functional.mse_loss, cluster="1x2 cpu", **DATA)
    return equal({name: m.training for name, m in model.named_modules()} == before, f"modes {before}")


def changed_after_planning(place: Place) -> str:
    """The module is changed between planning and export."""
    model = seeded(Dropping)
    plan = parallelize_alone(
        model, "1x2 cpu", features(), loss_fn=functional.mse_loss, training=Training(precision="fp64"),
        parallelism=Parallelism(**DATA),
    )  # fmt: skip
    model.drop = nn.Tanh()  # type: ignore[assignment]
    plan.export(place.folder / "out")
    weights = {n: v.double() for n, v in model.state_dict().items()}
    batch = dict(zip(("x", "target"), (v.double() for v in features()), strict=True))
    call = functools.partial(place.pools.of(2).run, evaluate, str(place.folder / "out"), weights, [batch])
    return refused(call, "differs", "tanh")


def without_model(place: Place) -> str:
    """A plan that was written without its module at hand: nobody has looked at it in evaluation."""
    plan = plan_of(place)
    record = opened(plan.folder).record
    bare = replace(record, evaluable=UNKNOWN)
    write_folder(bare, place.folder / "bare", "x", {})
    call = functools.partial(place.pools.of(2).run, evaluate, str(place.folder / "bare"), plan.weights, [plan.batch])
    return refused(call, "exported without its model", "where it is made")


def by_hand(rank: int, world: int, folder: str, weights: str, batch: Batch) -> object:
    plan = opened(folder)
    program = Program(replace(plan.spec(), forms=None), plan.module())
    program.load_weights(weights)
    return program.evaluate(batch)


def hand_made(place: Place) -> str:
    plan = plan_of(place)
    call = functools.partial(place.pools.of(2).run, by_hand, str(plan.folder), plan.weights, plan.batch)
    return refused(call, "made by hand")


def other_peer(plan: Planned) -> list[Batch]:
    return [plan.batch, {name: value.flip(0) for name, value in plan.batch.items()}]


def one_less(plan: Planned) -> list[Batch]:
    x, target = plan.batch.values()
    batch = dict(zip(plan.batch, (x[:5], target[:4]), strict=True))
    return [batch, batch]


def as_integers(plan: Planned) -> list[Batch]:
    return [{name: value.long() for name, value in plan.batch.items()}] * 2


def without_target(plan: Planned) -> list[Batch]:
    name = next(iter(plan.batch))
    return [{name: plan.batch[name]}] * 2


def empty(plan: Planned) -> list[Batch]:
    return [plan.rows(0)] * 2


def twice(plan: Planned) -> list[Batch]:
    return [{name: torch.cat([value, value]) for name, value in plan.batch.items()}] * 2


def both_whole(plan: Planned) -> list[Batch]:
    """Two different batches, each as large as the planned one."""
    return other_peer(plan)


def wider(plan: Planned) -> list[Batch]:
    return [{name: torch.cat([value, value], 1) for name, value in plan.batch.items()}] * 2


def attack(
    name: str, guards: str, run: Callable[..., str], *given: object, slow: bool = False, **options: object
) -> Attack:
    return Attack("loop", name, guards, lambda place: run(place, *given, **options), slow)


ATTACKS: tuple[Attack, ...] = (
    attack("evaluate a model with dropout", "the training loss is returned", rows, [8, 3], make=Dropping),
    attack("evaluate a model with batch norm", "this batch's statistics normalise it",
           rows, [8, 3, 1], make=Normalising),
    attack("evaluate batch norm that keeps no statistics", "statistics of a rank's rows", rows, [8, 6, 3, 2],
           make=lambda: Normalising(tracks=False)),
    attack("evaluate between backward and update, dropout", "the waiting gradients or a counter are lost",
           unchanged, Dropping),
    attack("evaluate between backward and update, batch norm", "running statistics move", unchanged, Normalising),
    attack("evaluate between backward and update, ZeRO-3", "gathered parameters are the next step's",
           unchanged, Dropping,
           ranks=2, dp=2, tp=1, pp=1, zero=3),
    attack("evaluate between backward and update, two stages", "the schedule's counters move", unchanged, Dropping,
           ranks=2, dp=1, tp=1, pp=2, micro_batch=2),
    attack("evaluate before the first step", "gradients are made", makes_no_gradients),
    attack("evaluate after updates under ZeRO-3", "the parameters of the evaluation before",
           after_steps, zero=3, **DATA),
    attack("evaluate after updates under local SGD", "one replica's own weights", after_steps, local_steps=5, **DATA),
    attack("evaluate after updates under PipeDream-2BW", "weights of a pipeline that isn't drained", after_steps,
           pipeline_schedule="pipedream-2bw", micro_batch=2, **STAGES),
    attack("evaluate what isn't finite", "training ends, or its state is spoilt", nan_and_on),
    attack("evaluate a batch whose labels are all ignored", "zero instead of nan", all_ignored),
    attack("evaluate a short batch whose first rows are ignored", "padded or ignored rows are counted", ignored_rows),
    attack("evaluate a short batch with weights of classes", "weights of rows that aren't there", weighted_classes),
    attack("evaluate 1, 3, 5 and 7 rows of a mean", "padding counts in the mean", rows, [7, 5, 3, 1]),
    attack("evaluate short batches on two stages", "shapes of the planned batch are awaited", rows, [7, 3, 1],
           micro_batch=2, **STAGES),
    attack("evaluate short batches on tensor-parallel ranks", "rows that don't divide are dropped", rows, [7, 3, 1],
           **TENSOR),
    attack("evaluate a short batch under the root of a mean", "roots of parts are added up", rows, [7, 4, 2],
           loss=forwards.root_of_mean, **TENSOR),
    attack("evaluate a short batch of a loss between rows", "rows meet those of their part alone", rows, [7, 4],
           loss=forwards.in_batch, **TENSOR),
    attack("evaluate the same short batch on all ranks", "it is taken for a rank's rows, and counted twice", rows, [4],
           loss=forwards.sum_over_eight),
    attack("evaluate uneven rows of each rank", "every rank's mean weighs the same", own_rows, 4, 1),
    attack("evaluate each rank's own rows of a whole batch", "one rank's rows are taken for all", own_rows, 4, 4),
    attack("evaluate a model that branches on self.training", "the training branch's loss", refused_model, Branching,
           "head", "let forward compute the same"),
    attack("evaluate a model with stochastic depth", "layers are skipped in evaluation", refused_model, SkippingDepth,
           "differs", "let forward compute the same"),
    attack("evaluate fewer rows under a loss over x.shape[0]", "divided by the planned rows", refused_rows,
           forwards.sum_over_rows, 3, "3 rows", "give a batch of 8 rows"),
    attack("evaluate a single row of a model that squeezes", "a dim too many is broadcast", refused_rows,
           forwards.squeezing, 1, "1 row", "give a batch of 8 rows", **TENSOR),
    attack("evaluate a single row of a model that takes none", "a row normalised by itself", refused_rows,
           functional.mse_loss, 1, "1 row", "2 at least", make=lambda: Normalising(tracks=False)),
    attack("evaluate other rows on a tensor-parallel peer", "two batches in one product", refused_batches, other_peer,
           "rank 1", "rank 0", **TENSOR),
    attack("evaluate two whole batches at once", "halves of different batches are joined", refused_batches, both_whole,
           "rows of their own: [8, 8]"),
    attack("evaluate more rows than planned", "what is too much is dropped",
           refused_batches, twice, "16 rows", "at most 8"),
    attack("evaluate no rows", "the mean of nothing", refused_batches, empty, "at least one row"),
    attack("evaluate inputs and targets of different lengths", "rows are paired wrongly", refused_batches, one_less,
           "different numbers of rows"),
    attack("evaluate integers where floats belong", "a silent cast", refused_batches, as_integers, "convert it first"),
    attack("evaluate without targets", "a traceback", refused_batches, without_target, "plan's inputs are"),
    attack("evaluate wider rows", "a traceback", refused_batches, wider, "rows, 16"),
    attack("plan and export a module with its own modes", "its modes are others afterwards", module_stays),
    attack("change the module between plan and export", "another model is evaluated", changed_after_planning),
    attack("evaluate a plan whose model nobody looked at", "the training graph is assumed", without_model),
    attack("evaluate a program made by hand", "a traceback", hand_made),
)  # fmt: skip
