"""What broke a step, an evaluation or an update off midway, so that no further one can follow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from autoplan.errors import LostRankError, WeightsError


class BrokenOff:
    """Of one program on one rank.

    alone     whether the program has one rank and one stage. Then nothing is on its way when a computation breaks off,
              and the next one begins anew
    updating  whether an update began and hasn't ended: of the parameters some may be new
    """

    def __init__(self, alone: bool) -> None:
        self.alone, self.updating, self.told = alone, False, ""
        self.versions: Callable[[], list[int]] = list
        self.before: list[int] = []

    def update(self, optimizer: Optimizer) -> None:
        """An update begins. Where a hook of the user's breaks it off before anything is written, nothing has."""
        self.versions = partial(versions, optimizer)
        self.updating, self.before = True, self.versions()

    @contextmanager
    def computing(self, what: str) -> Iterator[None]:
        """Around what ranks compute together: "a step", "an evaluation"."""
        try:
            yield
        except BaseException as error:
            if not self.alone:
                self.told = f"{what} that broke off with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise

    def check(self, call: str) -> None:
        """LostRankError where ranks may wait for each other in what broke off; and ``check_values``."""
        if self.told:
            raise LostRankError(
                f"program.{call} after {self.told}",
                "what other ranks had sent by then, or still wait for, would be taken for this call's",
                "end the program on every rank, and start it anew from a checkpoint",
            )
        self.check_values(call)

    def check_values(self, call: str) -> None:
        """WeightsError where an update broke off."""
        if self.updating and self.versions() != self.before:
            cause = "some parameters and optimizer states may be new and others old"
            remedy = "load_checkpoint(path)" if self.alone else "end the program, and start it anew from it"
            raise WeightsError(
                f"program.{call} after an update that broke off", cause, f"take the last checkpoint: {remedy}"
            )


@torch.no_grad()
def versions(optimizer: Optimizer) -> list[int]:
    """How often each parameter and each of its states was written. No operator runs: of a DTensor that has a state its
    part isn't looked at, for that is a view of its own. What writes to such a part past the DTensor writes to its state
    before; a state that the rule no longer uses (a momentum that was set to 0) isn't written."""
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters = [parameter for parameter in given if not optimizer.state.get(parameter)]
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [value for value in (*parameters, *states) if isinstance(value, Tensor)]
    parts = [(x.to_local() if isinstance(x, DTensor) else x)._version for x in tensors]
    return [*(parameter._version for parameter in given), *parts]
