"""Names of torch without a public alias that several modules need, each with its reason.

A new version of torch may move them: then this module changes. A private name that one module alone needs stands there.
"""

from typing import TypeGuard

from torch._library.custom_ops import OPDEFS  # what torch.library.custom_op made, by name
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # tensors without values, as torch.export has them
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator
from torch.utils._python_dispatch import _disable_current_modes as without_modes  # a region that no such mode sees
from torch.utils._pytree import tree_leaves, tree_map  # the documented way to walk nested arguments

__all__ = [
    "OPDEFS", "FakeTensor", "FakeTensorMode", "TorchDispatchMode", "is_fake", "tree_leaves", "tree_map",
    "without_modes",
]  # fmt: skip


def is_fake(x: object) -> TypeGuard[FakeTensor]:
    """Whether something is a tensor without values, as in a trace, a compilation or a rehearsal."""
    return isinstance(x, FakeTensor)
