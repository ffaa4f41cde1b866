"""Attention whose keys and values go round the ranks (``runtime.ops.attention.ring``): its blocks, the sends beside
them."""

from dataclasses import dataclass, replace

from autoplan.cost.operators.cost import Cost
from cost_models.collective import hidden_seconds
from cost_models.compute import (
    attention_backward_seconds,
    attention_flops,
    attention_seconds,
    memory_bound_seconds,
    scores_seconds,
)
from cost_models.hardware import Device

WIDE_BYTES = 4  # of an element of what is summed up over the blocks: float32; 8 where operands are float64
JOINING = 7  # passes over a result to join a block to it: two shares multiplied, their sum; fused, three
ADDING = 3  # passes over a gradient to add a block's summand


Extents = tuple[int, int, int, int, int, bool]
"""Batch, heads, rows of queries, keys, head dim, whether it is causal."""


def attention(extents: Extents, dtype: str, device: Device) -> Cost:
    """A fused attention on one device."""
    return Cost(
        float(attention_seconds(*extents, dtype, device)),
        float(attention_backward_seconds(*extents, dtype, device)),
        float(attention_flops(*extents)),
    )


def unfused(extents: Extents, dtype: str, device: Device) -> Cost:
    """An attention with dropout whose scores go through memory; at the rate of streaming kernels where the profile
    doesn't say what kernels over scores reach."""
    known = replace(device, scores_efficiency=device.scores_efficiency or 1.0)
    forward_s, backward_s = scores_seconds(*extents[:5], True, dtype, known)
    return Cost(float(forward_s), float(backward_s), float(attention_flops(*extents)))


@dataclass(frozen=True)
class Ring:
    """One rank's part.

    heads, kv     query heads, and heads of keys and values
    rows, keys    that a rank has
    head_dim      of a query, and of a value
    ways          ranks
    balanced      causal, with a piece of the sequence from either end on every rank; where it is causal and isn't
                  balanced the last rank, which sees all keys, sets the pace
    """

    batch: int
    heads: int
    kv: int
    rows: int
    keys: int
    head_dim: int
    value_dim: int
    ways: int
    is_causal: bool
    balanced: bool
    dtype: str
    itemsize: int
    fuses: bool

    @property
    def wide(self) -> int:
        """Bytes of an element of what is summed up."""
        return max(self.itemsize, WIDE_BYTES)

    @property
    def part_bytes(self) -> int:
        """Of the keys and values that a rank sends at each step."""
        return self.batch * self.kv * self.keys * (self.head_dim + self.value_dim) * self.itemsize

    @property
    def gradient_bytes(self) -> int:
        """Of their gradients, which follow them."""
        return self.part_bytes // self.itemsize * self.wide

    @property
    def result_bytes(self) -> int:
        return self.batch * self.heads * self.rows * self.value_dim * self.itemsize

    @property
    def query_bytes(self) -> int:
        return self.batch * self.heads * self.rows * self.head_dim * self.itemsize

    @property
    def exchanged_bytes(self) -> tuple[int, int]:
        """(forward, backward) on the way to either end of the sequence and back: queries, keys, values and the result;
        the result's gradient and those of the others."""
        size = self.query_bytes + self.part_bytes + self.result_bytes if self.balanced else 0
        return size, size

    @property
    def kept_bytes(self) -> int:
        """Beside its operands and its result: the result as it was before it came back from either end."""
        return self.result_bytes if self.balanced else 0

    @property
    def passing_bytes(self) -> tuple[int, int]:
        """What stands for a moment, (forward, backward): a block's result beside those that it is joined to; the
        queries' gradient, and keys and values with their gradients, here, on their way and as they are sent."""
        wide = self.wide // self.itemsize
        forward = 2 * wide * self.result_bytes + 3 * self.part_bytes
        return forward, self.result_bytes + wide * self.query_bytes + 3 * self.gradient_bytes + 2 * self.part_bytes

    def block(self, rows: int, keys: int, is_causal: bool, device: Device) -> Cost:
        return attention((self.batch, self.heads, rows, keys, self.head_dim, is_causal), self.dtype, device)

    def turns(self, device: Device) -> tuple[Cost, Cost]:
        """(with a rank's own keys, with another's)."""
        if not self.balanced:
            own = self.block(self.rows, self.keys, self.is_causal, device)
            return own, self.block(self.rows, self.keys, False, device) + self.joined(device)
        half, keys = self.rows // 2, self.keys // 2
        whole, diagonal = self.block(half, keys, False, device), self.block(half, keys, True, device)
        return diagonal.times(2) + whole + self.joined(device), whole.times(2) + self.joined(device)

    def joined(self, device: Device) -> Cost:
        """A block's result joined to that of the blocks before, its gradients added to theirs."""
        wide = self.wide // self.itemsize
        result = wide * self.result_bytes
        added = wide * self.query_bytes + self.gradient_bytes
        forward = float(memory_bound_seconds((ADDING if self.fuses else JOINING) * result, device))
        return Cost(forward, float(memory_bound_seconds(ADDING * added, device)))

    def compute(self, device: Device) -> Cost:
        own, other = self.turns(device)
        return own + other.times(self.ways - 1)

    def hidden_s(self, part_s: float, gradient_s: float, device: Device) -> tuple[float, float]:
        """(forward, backward) seconds of the sends that the blocks hide: a step's keys and values arrive during the one
        before; backward their gradients, too, go on while the next step is computed, and in the open at last.

        part_s, gradient_s  of sending either to the next rank
        """
        if device.blocking:
            return 0.0, 0.0
        own, other = self.turns(device)
        between, slowdown = self.ways - 2, device.overlap_slowdown

        def hidden(compute_s: float, sent_s: float) -> float:
            return float(hidden_seconds(compute_s, sent_s, slowdown))

        forward_s = hidden(own.forward_s, part_s) + between * hidden(other.forward_s, part_s)
        backward_s = hidden(own.backward_s, part_s) + hidden(other.backward_s, gradient_s)
        return forward_s, backward_s + between * hidden(other.backward_s, part_s + gradient_s)
