"""Loops over the experts that were hit, traced as one mixture: its loss and gradients are the loop's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan import Parallelism, Training, pin
from autoplan.ir.graph import TensorType
from autoplan.runtime.parallel.flat_param_views import fill, matrices
from autoplan.runtime.parallel.own_box import Part
from autoplan.trace.passes.stacked_weights import restacked, with_stacked_weights
from autoplan.trace.pipeline import trace
from tests.support.expert_routers import CHOICES, EXPERTS, HIDDEN, INNER, LENGTH, ROWS, Router, batch, traced
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

torch.set_num_threads(1)


class Capped(Router):
    """Choices beyond a capacity name no expert: of the mask they are taken away."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        kept = F.one_hot(index, EXPERTS)
        return super().mixed(x, index, scores) if kept.shape[0] < 2 else self.within(x, kept, scores)

    def within(self, x: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        mask = (chosen * (chosen.cumsum(0) <= 3)).permute(2, 1, 0)
        for number in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            choice, token = torch.where(mask[number].squeeze(0))
            y.index_add_(0, token, self.experts[number[0]](x[token]) * scores[token, choice, None])
        return y


class Compared(Router):
    """A loop over all experts, where a choice equals the expert's number; sums by ``+=``."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            if token.numel() == 0:
                continue
            y[token] += scores[token, choice].unsqueeze(-1) * expert(x[token])
        return y


class Viewed(Router):
    """Sums go to a view of what is read afterwards."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        whole = torch.zeros(ROWS, LENGTH, HIDDEN)
        y = whole.view(-1, HIDDEN)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            if token.shape[0] > 0:
                y.index_add_(0, token, expert(x[token]).mul_(scores[token, choice, None]))
        return whole + 1


class Stored(Router):
    """Experts' weights in three tensors, by products of matrices; the last class of the mask is nobody's."""

    def own(self, extra: int = 0) -> None:
        self.up = nn.Parameter(torch.randn(EXPERTS + extra, 2 * INNER, HIDDEN) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS * INNER, HIDDEN) / 3)
        self.extra = extra

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(index, EXPERTS + 1).permute(2, 1, 0)
            hit = torch.greater(mask.sum((-1, -2)), 0).nonzero()
        for number in hit:
            number = int(number.item())
            choice, token = torch.where(mask[number])
            gate, up = (x[token] @ self.up[number].T).chunk(2, -1)
            rows = (F.silu(gate) * up) @ self.down.view(EXPERTS, INNER, HIDDEN)[number]
            y.index_add_(0, token, 0.5 * rows * scores[token, choice, None])
        return y


class Idle(Router):
    """The last two experts give their tokens back."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        mask = F.one_hot(index, EXPERTS).permute(2, 1, 0)
        for number in torch.greater(mask.sum((-1, -2)), 0).nonzero().squeeze(-1).tolist():
            choice, token = torch.where(mask[number])
            rows = self.experts[number](x[token]) if number < 2 else x[token]
            y.index_add_(0, token, rows * scores[token, choice, None])
        return y


class Asked(Router):
    """Whether an expert has any token is asked of its mask."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = index == number
            if mask.any():
                token, choice = torch.where(mask)
                y.index_add_(0, token, expert(x[token]) * scores[token, choice, None])
        return y


class ByChoice(Router):
    """One loop for each of a token's choices, whose masks are indices; a sum that is a new tensor each time."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for choice in range(CHOICES):
            for number, expert in enumerate(self.experts):
                mask = index[:, choice] == number
                if mask.sum() == 0:
                    continue
                y[mask] = y[mask] + scores[mask, choice].unsqueeze(1) * expert(x[mask])
        return y


class Grown(Router):
    """A sum that is a new tensor each time, and a column of scores that serves all choices."""

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, _ = (index == number).nonzero(as_tuple=True)
            if token.shape[0] > 0:
                y = y.index_add(0, token, expert(x.index_select(0, token)) * scores[token, 1, None])
        return y


MIXTURES: dict[str, Callable[[], Router]] = {
    "hit": Router,
    "hit, with biases and gates": lambda: Router(bias=True, gated=True),
    "with a capacity, with biases": lambda: Capped(bias=True),
    "compared": Compared,
    "into a view": Viewed,
    "stored together": Stored,
    "stored together, more than are used": lambda: Stored(extra=1),
    "some idle": Idle,
    "asked whether any": Asked,
    "a loop for each choice": ByChoice,
    "grown": Grown,
}


KIN = ("hit", "stored together", "some idle", "asked whether any")  # another has the same loop, and more


@pytest.mark.parametrize("name", [slow(name) if name in KIN else name for name in MIXTURES])
def test_a_loop_over_experts_is_one_mixture(name: str) -> None:
    torch.manual_seed(0)
    model = traced(MIXTURES[name]())
    operators = [node.op for block in model.blocks for node in block.nodes]
    assert operators.count("autoplan.experts") == (CHOICES if name == "a loop for each choice" else 1)
    assert not {"aten.index_add.default", "aten.nonzero.default"} & set(operators)
    apart = not isinstance(MIXTURES[name](), Stored)  # else one device's gradient is whole, too
    assert any("gets a gradient of zero" in note for note in model.notes) == apart


def test_weights_that_experts_have_each_by_itself_are_one_parameter() -> None:
    model = with_stacked_weights(trace(Router(bias=True), batch(), training=True))
    stacks = {p.name: p for p in model.parameters if p.members}
    shapes = {"up.weight": (INNER, HIDDEN), "down.weight": (HIDDEN, INNER), "up.bias": (INNER,), "down.bias": (HIDDEN,)}
    assert {name: p.type.shape for name, p in stacks.items()} == {
        f"experts.{name}": (EXPERTS, *shape) for name, shape in shapes.items()
    }
    assert [m.source for m in stacks["experts.up.bias"].members] == [f"experts.{n}.up.bias" for n in range(EXPERTS)]
    assert {name for segment in model.segments for name in segment.parameters} == {"router.weight", *stacks}
    up = stacks["experts.up.weight"]
    smaller = restacked(replace(up, type=TensorType((2, 3, HIDDEN), "float32")))
    assert [(m.source, m.size, m.start) for m in smaller.members] == [
        ("experts.0.up.weight", (3, HIDDEN), 0), ("experts.1.up.weight", (3, HIDDEN), 3 * HIDDEN)
    ]  # fmt: skip
    whole = torch.randn(EXPERTS, INNER, HIDDEN)
    own = matrices(up, whole)
    part = torch.full((2, 4, HIDDEN), torch.nan)
    fill(up, Part((1, 6, 0), (2, 4, HIDDEN)), part, lambda m, box, out: out.copy_(own[m.source][box.slices]))
    assert torch.equal(part, whole[1:3, 6:10])


PLANS = {
    "ep=4": Parallelism(ep=4), "tp=4, experts": Parallelism(tp=4, ep=1), "tp=4, each": Parallelism(tp=4, ep=1),
    "ep=2, tp=2": Parallelism(ep=2, etp=2, tp=2, dp=2), "ZeRO-3": Parallelism(ep=2, dp=4, zero=3),
}  # fmt: skip
FIRST, BY_EXPERTS, BY_INNER = 3, "S(0)", "S(1)"
PINS = {"tp=4, experts": [pin("autoplan.experts", BY_EXPERTS, operand=FIRST)],
        "tp=4, each": [pin("autoplan.experts", BY_INNER, operand=FIRST)]}  # fmt: skip
"""On a tensor axis the search takes the cheaper of the two: experts over it, or each one's inner dim."""


@pytest.mark.slow
@pytest.mark.usefixtures("verified_in_pool")
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_step_equals_one_device(plan: str, optimizer: str) -> None:
    """Parameters too: an expert that no token chose has a gradient of zeros. LAMB looks at each expert's own norms."""
    torch.manual_seed(0)
    training = Training(optimizer=optimizer, learning_rate=1e-3)
    found = parallelize_alone(
        Router(bias=True), "1x4 cpu", batch(), training=training, parallelism=PLANS[plan],
        constraints=PINS.get(plan, ()),
    )  # fmt: skip
    split = {p.name for p in found.lowered.parameters if p.members and p.layout.dims[0]}
    assert ("experts.up.weight" in split) == (optimizer == "adamw" and plan != "tp=4, each")
    result = found.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)
