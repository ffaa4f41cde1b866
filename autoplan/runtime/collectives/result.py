"""What an autograd Function's forward returns, made without operators that may do nothing.

``x.to(dtype)`` of what has that dtype and ``x.contiguous()`` of what is contiguous return x itself. Under torch 2.11's
compiler a Function whose forward returns such a result passes zeros back as its gradient, and says nothing of it.
"""

import torch
from torch import Tensor


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)
