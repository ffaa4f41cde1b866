"""1-bit LAMB: after a warm-up LAMB's variance stays, and each parameter's ratio follows what the variance would be.

Li et al. 2021, "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence Speed",
algorithm 1. With the variance frozen what is left of an update is linear in the momentum, which then goes in one bit an
element (``runtime.parallel.compression.onebit``). LAMB's ratio of norms isn't, and under a stale variance it is wrong.
In its place, for each parameter,

    c   the mean of the warm-up's ratios, of which the last count for most, each between 0.01 and 10
    r   the largest of frozen over fresh deviation, (√v̂ + eps) / (√f̂ + eps), where f goes on as v did, by the gradient
        that the sent momentum amounts to. Of an update whose weights decay the decay's part counts as 1. r is between
        0.5 and 4, and changes by a tenth of itself at most
    x  -= lr · c · r · (m̂ / (√v̂ + eps) + weight_decay · x)

The mean is one without the bias of its beginning at zero, so that a short warm-up gives no smaller ratio. Where blocks
of 256 elements have a scale each, as here, momentums of all parameters need no common one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from autoplan.runtime.optim.lamb import Lamb, move_moments, squares_of, update_of
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local

Largest = Callable[[Sequence[Tensor], Tensor], Tensor]
"""(the parameters that are stepped, [n] a number of each on this rank) -> the largest over the whole of each."""

FRESH, MEAN_RATIO, FACTOR = "exp_avg_sq_fresh", "mean_ratio", "factor"
OF_FROZEN = (FRESH, MEAN_RATIO, FACTOR)
"""What it keeps of a parameter beside what LAMB does."""
BETA, RATIOS = 0.9, (0.01, 10.0)
FACTORS, CHANGE = (0.5, 4.0), 0.1


class FrozenVarianceLamb(Lamb):
    """LAMB until a parameter has been updated ``warm_up`` times; its state is LAMB's, who may have begun it.

    largest  where ranks hold parts of the parameters: the largest of the parts'. By default they are whole
    """

    def __init__(
        self, params: ParamsT, warm_up: int, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)
        self.warm_up = warm_up
        self.largest: Largest = lambda parameters, values: values

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. Where ranks hold parts, every rank of the world takes part."""
        stepped = list(self.stepped())
        for parameter, group in stepped:
            self.move(parameter, self.state[parameter], group)
        parameters, nothing = [p for p, _ in stepped], torch.zeros(0, 2)
        norms, parts, factors = [], [], []
        for parameter, group in stepped:
            state = self.state[parameter]
            update = update_of(parameter, state, group)
            norms.append(squares_of(parameter, update))
            parts.append(squares_of(update.sub(local(parameter), alpha=group["weight_decay"]), update))
            factors.append(factor_of(state, group))
        whole = self.whole_squares(parameters, torch.stack(norms) if norms else nothing)
        shares = self.whole_squares(parameters, torch.stack(parts) if parts else nothing)
        largest = self.largest(parameters, torch.stack(factors) if factors else nothing[:, 0])
        ratios = torch.where((whole > 0).all(1), (whole[:, 0] / whole[:, 1]).sqrt(), 1.0)
        scales = self.scales(stepped, ratios, shares, largest.to(ratios))
        for (parameter, group), scale in zip(stepped, scales, strict=True):
            update = update_of(parameter, self.state[parameter], group)
            local(parameter).sub_(update.mul_(scale.to(update)).mul_(group["lr"]))

    def move(self, parameter: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
        """The moments. A frozen variance grows as the bias of its beginning at zero goes."""
        steps, beta2 = int(state["step"]) + 1 if state else 1, group["betas"][1]
        if steps <= self.warm_up:
            move_moments(parameter, state, group)
            return
        variance = local(state["exp_avg_sq"]).clone() if state else None
        if FRESH not in state and variance is not None:
            state[FRESH] = state["exp_avg_sq"].clone()
        move_moments(parameter, state, group)
        assert parameter.grad is not None
        gradient = local(parameter.grad)
        if variance is not None:
            local(state["exp_avg_sq"]).copy_(variance.mul_((1 - beta2**steps) / (1 - beta2 ** (steps - 1))))
            local(state[FRESH]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    def scales(
        self, stepped: Sequence[tuple[Tensor, Mapping[str, Any]]], ratios: Tensor, shares: Tensor, largest: Tensor
    ) -> list[Tensor]:
        """By what each parameter's update is multiplied, and what its state keeps of that.

        shares  [n, 2] the squared norms of an update without decay, and with it
        """
        found = []
        for n, (parameter, group) in enumerate(stepped):
            state, ratio = self.state[parameter], ratios[n]
            near, steps = ratio.clamp(*RATIOS), int(state["step"])
            counted = 1 - BETA ** min(steps - 1, self.warm_up)
            before = state.get(MEAN_RATIO, near * counted).to(ratio)
            if steps <= self.warm_up:
                state[MEAN_RATIO] = before * BETA + near * (1 - BETA)
                found.append(ratio)
                continue
            factor, last = largest[n], state.get(FACTOR, torch.ones(())).to(ratio)
            if group["weight_decay"]:
                share = torch.where(shares[n, 1] > 0, (shares[n, 0] / shares[n, 1]).sqrt().clamp(max=1.0), 1.0)
                factor = factor * share + (1 - share)
            factor = factor.clamp(*FACTORS)
            factor = torch.minimum(torch.maximum(factor, last * (1 - CHANGE)), last * (1 + CHANGE))
            state[MEAN_RATIO], state[FACTOR] = before, factor
            found.append(before / counted * factor)
        return found


def factor_of(state: Mapping[str, Tensor], group: Mapping[str, Any]) -> Tensor:
    """The largest of frozen over fresh deviation, on this rank's part; 1 while nothing is frozen."""
    variance = local(state["exp_avg_sq"])
    if FRESH not in state or not variance.numel():
        return torch.ones((), dtype=torch.float64, device=variance.device)
    bias = 1 - group["betas"][1] ** float(state["step"])
    frozen, fresh = ((x / bias).sqrt_().add_(group["eps"]) for x in (variance, local(state[FRESH])))
    return frozen.div_(fresh).max().double()


def largest_over_ranks(held: Sequence[ShardedParameter], sources: Sequence[str], device: torch.device) -> Largest:
    """The largest of what ranks hold of each of the user's parameters, pieces of a fused one together.

    sources  the user's names of all of the model's parameters, the same list on every rank
    """
    row = {source: i for i, source in enumerate(dict.fromkeys(sources))}
    of = {h.updated: row[h.stored.source] for h in held}

    def whole(parameters: Sequence[Tensor], values: Tensor) -> Tensor:
        total = torch.zeros(len(row), dtype=torch.float64, device=device)
        places = torch.tensor([of[p] for p in parameters], dtype=torch.int64, device=device)  # type: ignore[index]
        total.scatter_reduce_(0, places, values.to(total), "amax")
        dist.all_reduce(total, dist.ReduceOp.MAX)
        return total[places].to(values.device)

    return whole
