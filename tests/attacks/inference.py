"""Attacks on plans of ``Inference()``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import autoplan
from autoplan import Inference
from tests.attacks.attack import Attack, Place, equal, refused
from tests.attacks.forward import DATA, STAGES, TENSOR, Dropping, Normalising, seeded
from tests.support import zoo
from tests.support.forwards import Planned, features, forward, planned
from tests.support.planning import parallelize_alone


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, y.relu()


def inference(place: Place, make: Callable[[], nn.Module] = zoo.mlp, **pinned: object) -> Planned:
    training = Inference(precision="fp64")
    return planned(
        place.folder / "out", seeded(make), features()[:1], training=training, cluster="1x2 cpu", **(pinned or TENSOR)
    )


def results(place: Place, counts: Sequence[int], make: Callable[[], nn.Module] = zoo.mlp, **pinned: object) -> str:
    plan = inference(place, make, **pinned)
    batches = [plan.rows(count) for count in counts]
    expected = [plan.result(batch) for batch in batches]
    found = place.pools.of(2).run(forward, str(plan.folder), plan.weights, batches)
    close = [
        torch.allclose(x, y, rtol=1e-10, atol=1e-12) for each in found for x, y in zip(each, expected, strict=True)
    ]
    return equal(all(close), f"results of {list(counts)} rows on {len(found)} ranks")


def ask(rank: int, world: int, folder: str, name: str) -> object:
    with autoplan.load(folder).program() as program:
        return getattr(program, name)


def training_asked(place: Place, name: str) -> str:
    plan = inference(place)
    return refused(lambda: place.pools.of(2).run(ask, str(plan.folder), name), f"program.{name}", "Training(...)")


def no_result(place: Place) -> str:
    call = functools.partial(parallelize_alone, TwoHeads(), "1x2 cpu", features()[:1], training=Inference())
    return refused(call, "2 tensors", "loss_fn")


def scripts(place: Place) -> str:
    plan = inference(place)
    names = sorted(path.name for path in plan.folder.iterdir())
    return equal("run.py" in names and "train.py" not in names, f"files {names}")


def held_bytes(rank: int, world: int, folder: str) -> int:
    with autoplan.load(folder).program() as program:
        return sum("optim" in name for name in vars(program))


def no_optimizer(place: Place) -> str:
    plan = inference(place)
    return equal(place.pools.of(2).run(held_bytes, str(plan.folder)) == [0, 0], "no optimizer in the program")


def attack(name: str, guards: str, run: Callable[..., str], *given: object, **options: object) -> Attack:
    return Attack("inference", name, guards, lambda place: run(place, *given, **options))


ATTACKS: tuple[Attack, ...] = (
    attack("a module in training mode is planned for inference", "dropout is active", results, [8, 3], Dropping),
    attack("batch norm is planned for inference", "the batch's own statistics", results, [8, 3, 1], Normalising),
    attack("short batches on data-parallel ranks", "padding is returned", results, [8, 7, 1], zoo.mlp, **DATA),
    attack("short batches on two stages", "only the last stage has a result", results, [8, 7], zoo.mlp, **STAGES),
    attack("step an inference program", "a traceback", training_asked, "step"),
    attack("ask an inference program for its optimizer", "an optimizer's state is held",
           training_asked, "optimizer"),
    attack("load a checkpoint into an inference program", "half of it is loaded",
           training_asked, "load_checkpoint"),
    attack("count the optimizers of an inference program", "memory for moments", no_optimizer),
    attack("export a plan of the forward alone", "a train.py that can't train", scripts),
    attack("plan a forward that returns two tensors", "one of them is dropped", no_result),
)  # fmt: skip
