"""What every test runs under: one thread, no limit on how long an example takes, since the machine may be busy, and no
process group that another file's test has left."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import distributed

from autoplan import verify
from autoplan.ir.record import PlanRecord
from autoplan.verify import sharded
from autoplan.verify.local_ranks import RankPool
from tests.support.closing_ranks import ClosingRanks
from tests.support.shared_plans import SharedPlans

torch.set_num_threads(1)
gc.set_threshold(20_000, 20, 20)  # of graphs and plans hardly any object is garbage: looking took an eighth of all time
settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("whole"), max_examples=30)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported, whose decorators take what is loaded: properties hold for 30 examples in
    ``make test``, for hypothesis' 100 where the slow tests run too."""
    settings.load_profile("quick" if config.getoption("markexpr") == "not slow" else "whole")


def pytest_collection_finish() -> None:
    """Thousands of tests stay for the whole run: no collection of garbage looks at them again.

    What tests import is bytecode by then. What they write, models of users among it, is compiled each time it is
    imported: bytecode of an earlier file of the same name, size and second would be taken for it.
    """
    gc.collect()
    gc.freeze()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(scope="module", autouse=True)
def no_group_is_left() -> Iterator[None]:
    """A program run on one rank in the tests' own process starts a group and need not be closed. A pool of ranks can't
    fork beside a group: those of all later files would start fresh interpreters, ten seconds or more each."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture(scope="session")
def compiler() -> None:
    """The compiler loaded before ranks are forked: each of them would spend some seconds on it."""
    x = torch.ones(1, requires_grad=True)
    torch.compile(torch.sin, backend="aot_eager", fullgraph=True)(x).sum().backward()


@pytest.fixture(scope="session")
def shared_pools() -> Iterator[Callable[[int], RankPool]]:
    """Ranks for the tests of all files, by how many: a rank's first step takes far longer than its next. What leaks,
    compiles, or takes signals has a pool of its own, since these ranks would keep it."""
    with ExitStack() as stack:
        yield cache(lambda size: stack.enter_context(ClosingRanks(size, timeout_s=280)))


@pytest.fixture(scope="session")
def pool(shared_pools: Callable[[int], RankPool]) -> RankPool:
    """Four of them."""
    return shared_pools(4)


@pytest.fixture
def verified_in_pool(shared_pools: Callable[[int], RankPool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are verified on the shared ranks, to which what a test patches is unknown."""

    def on_these(record: PlanRecord, *more: Any) -> Any:
        return sharded.in_pool(shared_pools(record.chosen.mesh.devices), record, *more)

    for module in (verify, verify.inference):
        monkeypatch.setattr(module, "on_local_ranks", on_these)


@pytest.fixture(scope="session")
def shared_plans(tmp_path_factory: pytest.TempPathFactory) -> SharedPlans:
    """One folder for all processes of a run: xdist gives each a folder of its own below a common one."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-plans"
    folder.mkdir(exist_ok=True)
    return SharedPlans(folder)
