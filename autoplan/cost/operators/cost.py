"""What an operator takes on one device: seconds there and back, and the work of its matmuls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Seconds of one run on one device, and the FLOPs of its matmuls forward.

    weights_s  of backward_s, what gives parameters' gradients alone, so that no other stage waits for it
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    flops: float = 0.0
    weights_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.forward_s + other.forward_s,
            self.backward_s + other.backward_s,
            self.flops + other.flops,
            self.weights_s + other.weights_s,
        )

    def times(self, count: int) -> Cost:
        return Cost(count * self.forward_s, count * self.backward_s, count * self.flops, count * self.weights_s)
