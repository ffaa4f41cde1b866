"""``.data`` of a tensor, read as ``.detach()``: the same numbers, through which no gradient goes.

A trace records nothing of ``.data``, and would take what it gives for a constant whose numbers nobody knows.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

READ = Tensor.data.__get__  # type: ignore[attr-defined]


class Detached(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Collection[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0].detach() if func == READ else func(*args, **(kwargs or {}))
