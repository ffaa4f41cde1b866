"""What hides of the exchange of a mixture's tokens: seconds of messages beside what is computed meanwhile.

Messages of one group go one after another, in the order in which they are issued. One starts once what was computed
before its issue is done, and whoever reads it waits. The order here is the program's (``runtime.ops.experts.routed``):

    forward   chunk 0 goes; each chunk arrives, the next goes, it is computed, and its results go back
    backward  likewise; a chunk's rows have their gradients, which go back, before its weights have theirs

So of one chunk nothing hides in the forward, and in the backward the weights' gradients hide the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.operator_seconds import Operator, grouped_of
from autoplan.ir.choice import BlockChoice
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.rules.strategies import Strategy
from cost_models.hardware import Device


@dataclass
class Streams:
    """Two queues of a device, in seconds: what it computes, and its messages in one group.

    idle  when the computing queue waited, (from, until)
    """

    computed_s: float = 0.0
    sent_s: float = 0.0
    idle: list[tuple[float, float]] = field(default_factory=list)

    def compute(self, seconds: float) -> None:
        self.computed_s += seconds

    def send(self, seconds: float) -> tuple[float, float]:
        """A message's (start, end)."""
        start = max(self.computed_s, self.sent_s)
        self.sent_s = start + seconds
        return start, self.sent_s

    def wait(self, message: tuple[float, float]) -> None:
        if message[1] > self.computed_s:
            self.idle.append((self.computed_s, message[1]))
            self.computed_s = message[1]

    def hidden_s(self, message: tuple[float, float]) -> float:
        """Of a message, while the device computes."""
        start, end = message
        return end - start - sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.idle)


@dataclass(frozen=True)
class Computed:
    """Seconds of what is computed beside messages, of one direction.

    rows     each chunk's, until what goes back is known; ``weights``: after that
    there    what else is computed while the first chunk is under way
    back     while the last is on its way back
    """

    rows: float
    weights: float = 0.0
    there: float = 0.0
    back: float = 0.0


@dataclass(frozen=True)
class BesideTokens:
    """What a mixture without chunks leaves to be computed beside its messages, seconds: while tokens go, while results
    come back; in the backward while results' gradients go, while tokens' gradients come back."""

    there_s: float = 0.0
    back_s: float = 0.0
    backward_there_s: float = 0.0
    backward_back_s: float = 0.0


NOTHING = BesideTokens()


@dataclass(frozen=True)
class Inside:
    """A collective in an operator's body: its seconds, and those of them that compute hides.

    hidden_again_s  of its forward where a backward runs it again
    """

    step: Collective
    forward_s: float
    backward_s: float
    hidden_forward_s: float = 0.0
    hidden_backward_s: float = 0.0
    hidden_again_s: float = 0.0

    @property
    def open_forward_s(self) -> float:
        return self.forward_s - self.hidden_forward_s

    @property
    def open_backward_s(self) -> float:
        return self.backward_s - self.hidden_backward_s


def in_chunks(operators: Mapping[str, Operator], choice: BlockChoice) -> Mapping[str, Operator]:
    """The operators of a block with its mixtures' chunks, as they are chosen."""
    cut = {name: replace(operators[name], chunks=how) for name, how in choice.exchanges if isinstance(how, int)}
    return {**operators, **cut} if cut else operators


def hidden_exchange(
    operator: Operator, strategy: Strategy, mesh: Mesh, device: Device, local: Cost, ways: tuple[Inside, Inside],
    beside: BesideTokens = NOTHING,
) -> tuple[Inside, Inside]:  # fmt: skip
    """A mixture's messages, there and back, with what hides of them.

    local  of the operator, its messages aside
    ways   of tokens there, and of results back
    """
    (tokens, results), (grouped, travel) = ways, grouped_of(operator, strategy, mesh)
    assert travel is not None
    chunks, dtype = travel.chunks, operator.operands[0].dtype
    ahead_s, back_s, weights_s = (
        each(dtype, device) for each in (grouped.forward_s, grouped.backward_s, grouped.weights_s)
    )
    passes, share = (travel.forward_s(device), travel.backward_s(device)), 1 - 1 / chunks  # of messages; not the first
    forward_s, whole_s = (
        whole * (products_s + share * passes_s) / (products_s + passes_s) / chunks
        for whole, products_s, passes_s in zip(
            (local.forward_s, local.backward_s), (ahead_s, back_s), passes, strict=True
        )
    )
    weights_s *= local.backward_s / (back_s + passes[1])
    zeros_s = travel.zeros_s(device) if beside != NOTHING else 0.0  # made before the results are waited for
    forward = Computed(forward_s, 0.0, beside.there_s, beside.back_s + zeros_s)
    backward = Computed(whole_s - weights_s, weights_s, beside.backward_there_s, beside.backward_back_s)
    slowdown = device.overlap_slowdown
    ahead = hidden_of(chunks, tokens.forward_s / chunks, results.forward_s / chunks, forward, slowdown)
    behind = hidden_of(chunks, results.backward_s / chunks, tokens.backward_s / chunks, backward, slowdown)
    products_s, activated_s = grouped.again_s(dtype, device), grouped.activated_again_s(dtype, device)
    again, rows_s = tokens.forward_s / chunks, (products_s + activated_s) / chunks
    backward = replace(backward, rows=backward.rows + rows_s)
    both = hidden_of(chunks, results.backward_s / chunks + again, tokens.backward_s / chunks, backward, slowdown)
    again_s = max(0.0, sum(both) - sum(behind))
    if chunks == 1:  # sent before anything is computed: it is put together while the results' gradients go
        again_s = min(travel.again_s(device), results.backward_s / (1 + slowdown) - behind[0])
    return (
        replace(tokens, hidden_forward_s=ahead[0], hidden_backward_s=behind[1], hidden_again_s=again_s),
        replace(results, hidden_forward_s=ahead[1], hidden_backward_s=behind[0]),
    )


def hidden_of(chunks: int, there_s: float, back_s: float, beside: Computed, slowdown: float) -> tuple[float, float]:
    """Of all messages there, and of all back, the seconds that hide.

    there_s, back_s  of one chunk's messages
    slowdown         as of ``cost_models.collective.overlapped``: a message beside compute costs this
    """
    there_s, back_s = there_s / (1 + slowdown), back_s / (1 + slowdown)
    line, going, coming = Streams(), list[tuple[float, float]](), list[tuple[float, float]]()
    going.append(line.send(there_s))
    line.compute(beside.there)
    for number in range(chunks):
        line.wait(going[number])
        if number + 1 < chunks:
            going.append(line.send(there_s))
        line.compute(beside.rows)
        coming.append(line.send(back_s))
        line.compute(beside.weights)
        if number:
            line.wait(coming[number - 1])
    line.compute(beside.back)
    line.wait(coming[-1])
    return sum(map(line.hidden_s, going)), sum(map(line.hidden_s, coming))
