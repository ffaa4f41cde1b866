"""Parameter servers of a hand-written program on four ranks: one device's steps, or those of older weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from autoplan.options import Training
from autoplan.runtime.parallel.servers.parameter_server import Servers
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import Simulated, older_weights
from tests.support.asynchronous_trainings import ADAMW, CLIPPED, LAMB, MOMENTUM, how
from tests.support.sampling import sampled
from tests.support.taken_up import Trained, assert_same, trained

STEPS = 5
TRAININGS = {"adamw": ADAMW, "clipped": CLIPPED, "momentum": MOMENTUM, "lamb": LAMB}


def made(servers: int, staleness: int, training: Training = ADAMW, microbatches: int = 1) -> Program:
    spec = tiny.spec(dp=4, microbatches=microbatches, training=training)
    spec = replace(spec, parallelism=replace(spec.parallelism, servers=servers or None, staleness=staleness))
    return Program(spec, tiny.program())


def train(
    rank: int, world: int, servers: int, staleness: int, training: Training, microbatches: int,
    folder: str = "", at: int = 0, then: int | None = None,
) -> Trained:  # fmt: skip
    """Taken up, where that is asked for, by a program of ``then`` servers."""
    return trained(
        lambda: made(servers, staleness, training, microbatches), STEPS, folder, at,
        lambda: made(servers if then is None else then, staleness, training, microbatches),
    )  # fmt: skip


def simulated(staleness: int, training: Training) -> Simulated:
    return older_weights(tiny.reference(), list(tiny.batches(STEPS)), how(training), staleness)


CASES = [(servers, staleness, "adamw", 1) for servers in (1, 2, 3, 4) for staleness in (0, 1, 2)]
CASES += [(2, 0, "clipped", 2), (4, 2, "clipped", 2), (4, 1, "momentum", 1), (3, 0, "lamb", 1)]
QUICK = [(1, 0, "adamw", 1), (3, 0, "lamb", 1), (4, 2, "clipped", 2)]


@pytest.mark.parametrize(("servers", "staleness", "kind", "microbatches"), sampled(CASES, QUICK))
def test_equals_its_rule(pool: RankPool, servers: int, staleness: int, kind: str, microbatches: int) -> None:
    """Without staleness that is one device."""
    results = pool.run(train, servers, staleness, TRAININGS[kind], microbatches)
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(staleness, TRAININGS[kind]), 1e-11)


GOING_ON = [(2, 0, 4), (4, 2, 1), (3, 1, 3)]


@pytest.mark.parametrize(("servers", "staleness", "then"), sampled(GOING_ON, GOING_ON[:2]))
def test_a_run_whose_ranks_have_died_goes_on_from_its_checkpoint(
    pool: RankPool, tmp_path: Path, servers: int, staleness: int, then: int
) -> None:
    """On other servers, too: whichever died, what it had alone was saved."""
    found = pool.run(train, servers, staleness, ADAMW, 1, str(tmp_path / "saved"), 3, then)[0]
    assert_same(found, simulated(staleness, ADAMW), 1e-11)


def states(rank: int, world: int) -> tuple[list[bool], list[bool], dict[str, Tensor]]:
    """Of each parameter whether this rank has optimizer state, and a gradient before the update; all gradients."""
    program = made(2, 0)
    program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))
    there, whole = [h.gradient is not None for h in program.held], dict(program.full_grads())
    program.optimizer.step()
    return [h.updated in program.optimizer.state for h in program.held], there, whole


def test_a_server_alone_has_gradients_and_optimizer_state(pool: RankPool) -> None:
    results = pool.run(states)
    for has in (0, 1):
        each = torch.tensor([found[has] for found in results])
        assert bool((each.sum(0) == 1).all()) and not each[1].any() and not each[3].any() and each[2].any()
    module = tiny.reference()
    module(**next(tiny.batches(1))).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(results[0][2][name], parameter.grad, rtol=1e-10, atol=1e-14)


def in_small_buckets(rank: int, world: int) -> tuple[int, Trained]:
    """How many rounds there are where each bucket has one parameter, and such a run."""
    with patch(f"{Servers.__module__}.cut", lambda sizes: [range(n, n + 1) for n in range(len(sizes))]):
        program = made(2, 0)
        return len(program.servers.rounds) if program.servers else 0, train(rank, world, 2, 0, ADAMW, 1)


def test_values_are_pulled_bucket_by_bucket(pool: RankPool) -> None:
    results = pool.run(in_small_buckets)
    assert {rounds for rounds, _ in results} == {6}  # of eleven parameters the larger half of the number
    assert_same(results[0][1], simulated(0, ADAMW), 1e-11)
