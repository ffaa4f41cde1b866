"""Random operators beside dropout: drawn from each element's place, alike on every plan; what can't be is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.errors import NoRuleError
from autoplan.options import Parallelism
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.global_random import step_keys, uniform
from autoplan.trace.pipeline import trace
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

pytestmark = pytest.mark.usefixtures("verified_in_pool")

WIDTH, ROWS = 16, 8
DRAWS = {
    "rand_like": lambda h: h * (torch.rand_like(h) + 0.5),
    "randn_like": lambda h: h + 0.1 * torch.randn_like(h),
    "bernoulli": lambda h: h * torch.bernoulli(torch.sigmoid(h).detach()),
    "uniform": lambda h: h * torch.empty_like(h).uniform_(0.5, 1.5),
    "exponential": lambda h: h - 0.1 * torch.ones_like(h).exponential_(2.0).log(),  # as Gumbel's trick has it
}


class Noisy(nn.Module):
    def __init__(self, draw: str) -> None:
        super().__init__()
        self.up, self.down, self.draw = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(DRAWS[self.draw](torch.tanh(self.up(x))))


class Model(nn.Module):
    def __init__(self, draw: str, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Noisy(draw) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(ROWS, WIDTH, generator=generator) for name in "xy"}


@pytest.mark.parametrize(
    ("draw", "pins"),
    [
slow(("rand_like", Parallelism(dp=2, tp=1, pp=1, micro_batch=2))),
        slow(("randn_like", Parallelism(dp=1, tp=2, pp=1, micro_batch=4, recompute="full"))),
slow(("bernoulli", Parallelism(dp=1, tp=1, pp=2, micro_batch=2, recompute="selective"))),
        slow(("uniform", Parallelism(dp=1, tp=2, pp=1, micro_batch=4))),
        ("exponential", Parallelism(dp=2, tp=1, pp=1, micro_batch=1, zero=3)),
    ],
    ids=["rand_like", "randn_like", "bernoulli", "uniform", "exponential"],
)
def test_every_plan_draws_what_one_device_draws(draw: str, pins: Parallelism) -> None:
    plan = parallelize_alone(Model(draw), "1x2 cpu", batch(), parallelism=pins)
    assert plan.verify().passed


def test_numbers_are_uniform_differ_from_shard_to_shard_and_join_to_the_wholes() -> None:
    key = step_keys(0, 0, 1)[0]
    whole = uniform(torch.empty(64, 64), 0, key=key, call=3)
    parts = [uniform(torch.empty(64, 32), 0, key=key, call=3, dims=[[], [MeshAxis("tp", 2, rank)]]) for rank in (0, 1)]
    assert torch.equal(torch.cat(parts, 1), whole) and not torch.equal(*parts)
    assert whole.min() >= 0 and whole.max() < 1
    assert abs(whole.mean() - 0.5) < 3 * (1 / 12 / whole.numel()) ** 0.5
    assert not torch.equal(whole, uniform(torch.empty(64, 64), 0, key=key, call=4))


def test_numbers_lie_where_the_operand_does_wherever_the_key_is() -> None:
    """Under randomness="per-rank" keys lie on the host."""
    assert uniform(torch.empty(8, 4, device="meta"), 0, key=step_keys(0, 0, 1)[0], call=3).device.type == "meta"


class Drawn(nn.Module):
    def __init__(self, draw: object) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, WIDTH), draw

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.layer(x) * self.draw(x) - y) ** 2).mean()  # type: ignore[operator]


@pytest.mark.parametrize(
    "draw", [lambda x: torch.rand(ROWS, WIDTH), lambda x: torch.randperm(WIDTH).to(x.dtype)], ids=["rand", "randperm"]
)
def test_what_is_drawn_from_no_tensor_is_one_device_s(draw) -> None:
    plan = parallelize_alone(Drawn(draw), "1x2 cpu", batch(), parallelism=Parallelism(dp=2, tp=1, pp=1))
    assert plan.verify().passed


def test_what_nobody_draws_by_place_is_refused() -> None:
    with pytest.raises(NoRuleError, match="draws random numbers"):
        trace(Drawn(lambda x: torch.poisson(x.abs())), batch(), loss_fn=None, training=True)


def test_what_is_drawn_in_the_shape_of_the_batch_belongs_to_a_block() -> None:
    plan = parallelize_alone(Drawn(torch.rand_like), "1x2 cpu", batch(), parallelism=Parallelism(dp=2, tp=1, pp=1))
    assert plan.verify().passed


def test_the_public_entry_tells_it_too() -> None:
    with pytest.raises(NoRuleError, match="hand the numbers in with the batch"):
        autoplan.parallelize(Drawn(lambda x: torch.poisson(x.abs())), "1x2 cpu", batch())
