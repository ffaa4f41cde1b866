"""LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.clip import add_up
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local

Squares = Callable[[Sequence[Tensor], Tensor], Tensor]
"""(the parameters that are stepped, [n, 2] the squared norms of each one's values and update on this rank) -> the same
over the whole of each."""


class Lamb(Optimizer):
    """Adam's update, each parameter's scaled to the norm of the parameter: x -= lr · |x|/|u| · u with
    u = m̂ / (√v̂ + eps) + weight_decay · x, and a ratio of one where either norm is zero.

    whole_squares  where ranks hold parts of the parameters: adds the parts' squares up. By default they are whole
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.whole_squares: Squares = lambda parameters, squares: squares

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. Updates are computed twice, for their norms and to be applied: kept, they would take as much
        memory as the parameters. Where ranks hold parts, every rank of the world takes part."""
        stepped = list(self.stepped())
        for parameter, group in stepped:
            move_moments(parameter, self.state[parameter], group)
        mine = [squares_of(p, update_of(p, self.state[p], group)) for p, group in stepped]
        whole = self.whole_squares([p for p, _ in stepped], torch.stack(mine) if mine else torch.zeros(0, 2))
        ratios = torch.where((whole > 0).all(1), (whole[:, 0] / whole[:, 1]).sqrt(), 1.0)
        for (parameter, group), ratio in zip(stepped, ratios, strict=True):
            update = update_of(parameter, self.state[parameter], group)
            local(parameter).sub_(update.mul_(ratio.to(update)).mul_(group["lr"]))

    def stepped(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """The parameters with a gradient, each with its group's options."""
        for group in self.param_groups:
            yield from ((p, group) for p in group["params"] if p.grad is not None)


def move_moments(parameter: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    assert parameter.grad is not None
    gradient = local(parameter.grad)
    beta1, beta2 = group["betas"]
    state["step"] += 1
    local(state["exp_avg"]).lerp_(gradient, 1 - beta1)
    local(state["exp_avg_sq"]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)


def update_of(parameter: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any]) -> Tensor:
    """Adam's direction and the weight decay, on this rank's part."""
    beta1, beta2 = group["betas"]
    steps = float(state["step"])
    mean = local(state["exp_avg"]) / (1 - beta1**steps)
    deviation = (local(state["exp_avg_sq"]) / (1 - beta2**steps)).sqrt_().add_(group["eps"])
    return mean.div_(deviation).add_(local(parameter.detach()), alpha=group["weight_decay"])


def squares_of(parameter: Tensor, update: Tensor) -> Tensor:
    """[2], float64: the squared norms of a parameter's values here and of their update."""
    both = (local(parameter.detach()), update)
    return torch.stack([torch.linalg.vector_norm(x, dtype=torch.float64) ** 2 for x in both])


def squares_over_ranks(
    held: Sequence[ShardedParameter], sources: Sequence[str], device: torch.device, replica: MeshAxis | None = None
) -> Squares:
    """Adds up the squares of what ranks hold of each of the user's parameters, pieces of a fused one counted together.

    sources  the user's names of all of the model's parameters, the same list on every rank
    replica  the ranks of one replica, where each steps by itself; None: the world

    A part that several ranks keep counts once: each contributes its share (as in clipping). One all-reduce of 16 bytes
    a parameter over the world.
    """
    row = {source: i for i, source in enumerate(dict.fromkeys(sources))}
    of = {h.updated: (row[h.stored.source], h.copies) for h in held}

    def whole(parameters: Sequence[Tensor], squares: Tensor) -> Tensor:
        total = torch.zeros(len(row), 2, dtype=torch.float64, device=device)
        places = torch.tensor([of[p][0] for p in parameters], dtype=torch.int64, device=device)  # type: ignore[index]
        shares = torch.tensor([1 / of[p][1] for p in parameters], dtype=torch.float64, device=device)  # type: ignore[index]
        total.index_add_(0, places, squares.to(total) * shares[:, None])
        add_up(total, replica)
        return total[places].to(squares.device)

    return whole
