"""A shard's gradients, or its values, as one message of bytes, with numbers before them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoplan.runtime.parallel.sharded_parameter import ShardedParameter

NUMBER_BYTES = 8  # of a float64


class ShardMessage:
    """Memory of a shard's message, used again and again.

    bytes    what is sent
    numbers  [count] of these float64 numbers, a view
    has      [parameters] which of them have a tensor here, a view likewise
    tensors  views by the parameters' names
    """

    def __init__(self, held: Sequence[ShardedParameter], count: int) -> None:
        ordered = sorted(held, key=lambda h: -h.values.element_size())  # so that each view begins where its dtype may
        sizes = [h.values.numel() * h.values.element_size() for h in ordered]
        before = NUMBER_BYTES * (count + len(ordered))
        self.bytes = torch.zeros(before + sum(sizes), dtype=torch.uint8)
        numbers, *parts = self.bytes.split([before, *sizes])
        self.numbers, self.has = numbers.view(torch.float64).split([count, len(ordered)])
        self.tensors: dict[str, Tensor] = {
            h.name: part.view(h.values.dtype).view(h.values.shape) for h, part in zip(ordered, parts, strict=True)
        }

    def put(self, numbers: Sequence[float], tensors: Mapping[str, Tensor | None]) -> None:
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        for place, (name, memory) in enumerate(self.tensors.items()):
            tensor = tensors[name]
            self.has[place] = float(tensor is not None)
            if tensor is not None:
                memory.copy_(tensor)

    def given(self) -> dict[str, Tensor | None]:
        """What was put there; these are views."""
        named = zip(self.tensors.items(), self.has.tolist(), strict=True)
        return {name: memory if there else None for (name, memory), there in named}
