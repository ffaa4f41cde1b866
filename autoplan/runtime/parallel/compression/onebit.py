"""1-bit Adam: after a warm-up Adam's momentum goes in one bit an element, and its variance stays as it is.

Tang et al. 2021, "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", algorithm 1.
Adam isn't linear in its gradients, and what is added to them when some was left out would be squared. Once the variance
has settled it is frozen, and what is left is linear. On rank w of n, with the momentum m that all have alike, the
gradient g_w and the error e_w,

    c_w = signs of b m / n + (1 - b) g_w + e_w     each block's with its mean size; e_w: what that lacks
    m   = signs of the sum of c_w and of f         f, the error of the rank that adds up: what that lacks

by the exchange of ``quantised``. A gradient of (m' - b m) / (1 - b) is then given to Adam, whose momentum becomes m' by
it. An element whose variance is zero had no gradient in the warm-up, as a row of a table that nobody looked up: a
momentum's noise would be divided by nothing, so it stays as it is (the mask of DeepSpeed's implementation).
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from autoplan.ir.buckets import Compression
from autoplan.runtime.parallel.compression.block_codes import SIGNS
from autoplan.runtime.parallel.compression.quantised import QuantisedSums
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter


class OneBitSums(QuantisedSums):
    """Of one group, on one rank. ``left``: [this rank's blocks, elements] f, of what it adds up."""

    def __init__(self, held: Sequence[ShardedParameter], group: ProcessGroup, how: Compression) -> None:
        super().__init__(held, group, how, SIGNS)
        self.left = torch.zeros_like(self.added)
        self.kept = self.left

    def begin(self, keys: Sequence[str] | None = None) -> None:
        super().begin(keys)
        if keys is None:
            self.left.zero_()

    @cached_property
    def numbers(self) -> list[int]:
        """Of each parameter the number of its group."""
        assert self.optimizer is not None, "1-bit Adam has an optimizer to follow"
        found = {id(p): n for n, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        return [found[id(h.updated)] for h in self.held]

    def beta(self, place: int) -> float:
        """Of the momentum, as the parameter's group has it."""
        assert self.optimizer is not None
        return self.optimizer.param_groups[self.numbers[place]]["betas"][0]

    def state(self, place: int, field: str) -> Tensor:
        """Of the optimizer; zero before its first update."""
        assert self.optimizer is not None
        there = self.optimizer.state.get(self.held[place].updated, {})
        return there[field] if field in there else torch.zeros_like(self.held[place].values)

    def taken(self, place: int) -> Tensor:
        """This rank's part of the momentum."""
        beta, gradient = self.beta(place), self.held[place].parameter.grad
        mine = self.state(place, "exp_avg") * (beta / self.ranks)
        return mine if gradient is None else mine.add_(gradient, alpha=1 - beta)

    def given(self, place: int, whole: Tensor) -> Tensor:
        beta, before = self.beta(place), self.state(place, "exp_avg")
        moved = torch.where(self.state(place, "exp_avg_sq") > 0, whole, 0.0)
        return moved.sub_(before, alpha=beta).div_(1 - beta)

    def summed(self) -> Tensor:
        self.kept = self.left.clone() if self.missing else self.left
        self.left.add_(self.added)
        sent = self.code.encode(self.left, self.mine)
        self.left.sub_(self.code.decode(sent, self.mine, self.dtype))
        return sent

    def put_back(self, place: int, error: Tensor) -> None:
        super().put_back(place, error)
        first, rows = self.share * self.group.rank(), self.places[place]
        mine = slice(max(rows.start - first, 0), max(rows.stop - first, 0))
        self.left[mine] = self.kept[mine]

    def add_up(self) -> None:
        """What those who add up have left out, too."""
        whole = torch.zeros(len(self.sent), self.left.shape[1], dtype=self.dtype, device=self.left.device)
        first = self.share * self.group.rank()
        whole[first : first + self.share] = self.left
        for rows, error in zip(self.places, self.errors, strict=True):
            error.add_(whole[rows].view(-1)[: error.numel()].view(error.shape))
        super().add_up()

    def share_out(self) -> None:
        super().share_out()
        self.left.zero_()


class FrozenVarianceAdam(Optimizer):
    """Adam, or AdamW, whose variance stays as it is once a parameter has been updated ``warm_up`` times.

    decoupled  whether weights decay by themselves, as AdamW has it; else by the gradient

    Its state is Adam's, who may have begun it and may go on with it: what stays is the variance without the bias of its
    beginning at zero, so ``exp_avg_sq`` grows as that bias, of all steps until then, goes.
    """

    def __init__(
        self, params: ParamsT, warm_up: int, decoupled: bool, lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float | None = None,
    ) -> None:  # fmt: skip
        decay = (1e-2 if decoupled else 0.0) if weight_decay is None else weight_decay
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay})
        self.warm_up, self.decoupled = warm_up, decoupled

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient."""
        for group in self.param_groups:
            (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                if self.decoupled:
                    parameter.mul_(1 - rate * decay)
                elif decay:
                    gradient = gradient.add(parameter, alpha=decay)
                state["step"] += 1
                steps = int(state["step"])
                state["exp_avg"].lerp_(gradient, 1 - beta1)
                if steps <= self.warm_up:
                    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                elif steps > 1 and (more := (1 - beta2**steps) / (1 - beta2 ** (steps - 1))) != 1:
                    state["exp_avg_sq"].mul_(more)
                varied = state["exp_avg_sq"] / (1 - beta2**steps)
                root = varied.sqrt_().add_(group["eps"])
                parameter.addcdiv_(state["exp_avg"], root, value=-rate / (1 - beta1**steps))
