"""Pooling that torch has under another name for each number of dims."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import functional

LARGEST: Mapping[int, Callable[..., Tensor]] = {
    1: functional.adaptive_max_pool1d, 2: functional.adaptive_max_pool2d, 3: functional.adaptive_max_pool3d,
}  # fmt: skip
MEAN: Mapping[int, Callable[..., Tensor]] = {
    1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d,
}  # fmt: skip


def adaptive_max_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    """x [.., space..] -> [.., size..]: the greatest of windows that follow from the sizes."""
    return LARGEST[len(size)](x, list(size))


def adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    return MEAN[len(size)](x, list(size))
