"""A module's dropout left out, while all of it stays in the modes that it has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode  # the documented way to see every function of torch's

OFF: Mapping[Callable, tuple[int, str, object]] = {
    F.dropout: (2, "training", False), F.alpha_dropout: (2, "training", False),
    F.dropout1d: (2, "training", False), F.dropout2d: (2, "training", False), F.dropout3d: (2, "training", False),
    F.feature_alpha_dropout: (2, "training", False), torch.dropout: (2, "train", False),
    torch.feature_dropout: (2, "train", False), torch.alpha_dropout: (2, "train", False),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0), F.multi_head_attention_forward: (10, "dropout_p", 0.0),
    torch.lstm: (5, "dropout", 0.0), torch.gru: (5, "dropout", 0.0), torch.rnn_tanh: (5, "dropout", 0.0),
    torch.rnn_relu: (5, "dropout", 0.0),
}  # fmt: skip
"""Of each function that drops: where the argument stands that says so, its name, and what it is without dropping."""


class Quiet(TorchFunctionMode):
    """Nothing is dropped under it. A module that reads ``self.training`` still takes its own branch."""

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = list(args), dict(kwargs or {})
        if func in OFF:
            place, name, value = OFF[func]
            if len(args) > place:
                args[place] = value
            else:
                kwargs[name] = value
        return func(*args, **kwargs)
