"""Models as people bring them, planned for four ranks: equal to one device, whatever is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import autoplan.verify
import autoplan.verify.sharded
from autoplan.options import Parallelism, Training
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.sharded import in_pool
from tests.support import brought_masks as _masks  # noqa: F401  adds its models
from tests.support import brought_parts as _parts  # noqa: F401  likewise
from tests.support.brought import MODELS
from tests.support.planning import parallelize_alone

UNDER: dict[str, str | Parallelism] = {"auto": "auto", "dp": "ddp", "tp": Parallelism(tp=4)}


LONG = ("gru", "lstm")  # loops that are written out


@pytest.fixture(scope="module")
def four() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=280) as ranks:
        yield ranks


def check(four: RankPool, name: str, under: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_these(record, batch, state, function, *more):  # type: ignore[no-untyped-def]
        pool = four if record.chosen.mesh.devices == 4 else None
        if pool is not None:
            return in_pool(pool, record, batch, state, function, *more)
        return autoplan.verify.sharded.on_local_ranks(record, batch, state, function, *more)

    monkeypatch.setattr(autoplan.verify, "on_local_ranks", on_these)
    module, batch, loss_fn = MODELS[name]()
    asked = {"loss_fn": loss_fn, "training": Training(learning_rate=1e-3), "parallelism": UNDER[under]}
    plan = parallelize_alone(module, "1x4 cpu", batch, effort="fast", **asked)
    if under == "dp":
        assert plan.record.chosen.mesh.size("dp") == 4
    assert plan.verify().passed


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in MODELS])
def test_equal_under_data_parallelism(four: RankPool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(four, name, "dp", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("under", ["auto", "tp"])
@pytest.mark.parametrize("name", MODELS)
def test_equal_under_others(four: RankPool, name: str, under: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(four, name, under, monkeypatch)
