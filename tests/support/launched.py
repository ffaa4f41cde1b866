"""What is launched, in its order: products, collectives, and waits for these."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

NAMED = ("mm", "addmm", "allreduce_", "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor")


class Launched(TorchDispatchMode):
    """The operators' names, by their order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function._schema.name.split("::")[1]
        if name in NAMED:
            self.names.append(name)
        return function(*args, **(kwargs or {}))
