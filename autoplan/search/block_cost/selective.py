"""What a segment computes again in its backward where it recomputes selectively, and what it keeps for that.

Autograd keeps what operators read in their backward. A cheap operator's result (elementwise, a norm, a reshape), and
what was gathered, needn't be kept: the operands from which it follows are, or follow in their turn from what is kept.
Products, attention, experts and collectives inside operators (``DEAR``) never run again, so a product's result is kept
only where something in the backward reads it, or what follows from it; a partial sum, which nobody reads, isn't. What a
mixture keeps beside its operands may be dropped all the same, for it is most of what a layer keeps: its first products
run again then, and its tokens travel again (``cost.operators.kept_beside``). What its activation makes, elementwise, is
always dropped.

Of all the sets that may be computed again the one is sought that minimises

    bytes kept · rate  +  seconds of what runs again

with the rate of full recomputation, the forward's seconds over the bytes that it frees, by local search, from
everything kept and from everything cheap again. So a result is dropped where a second spent on it frees more than
a second of full recomputation does, and never is more kept than autograd keeps. The program names the results
(``BlockChoice.again``), and its runtime drops these alone (``autoplan.runtime.memory.selective``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from autoplan.cost import Operator, Prices
from autoplan.cost.operators.collective_ops import body_collectives
from autoplan.cost.operators.kept_beside import (
    activated_again,
    activated_bytes,
    bytes_beside,
    is_mixture,
    mixture_again_s,
    rebuilt_bytes,
    sent_again,
)
from autoplan.cost.prices import layout_bytes
from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import READ_BUFFER, Block, buffers_updated
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.live import LiveBytes
from autoplan.search.block_cost.live_backward import Backward
from autoplan.search.block_cost.live_compiled import CompiledWalk, kept_roots
from autoplan.search.block_cost.live_forward import Located, Step, Walk
from autoplan.search.block_cost.saved_tensors import values_bytes

DEAR = ("matmul", "attention", "experts", "lookups")
"""Kinds of operators (``Rule.cost``) whose results are never computed again."""


@dataclass(frozen=True)
class SelectiveSaves:
    """A segment that recomputes selectively, in one microbatch on one device.

    kept_bytes     kept from the forward for the backward, its input included where it is read
    rebuilt_bytes  what stands beside them, and beside the block's working memory, while its backward runs
    again_s        of what runs again in the backward
    again          the results that do, in the order of the program; a mixture's stands for what it keeps beside
    live           bytes at the moments of its forward and backward
    """

    kept_bytes: int = 0
    rebuilt_bytes: int = 0
    again_s: float = 0.0
    again: tuple[Located, ...] = ()
    live: LiveBytes = field(default_factory=LiveBytes)


@dataclass(frozen=True)
class Made:
    """How a storage is computed again: the value, the storages that its operator reads, and its seconds."""

    value: Located
    reads: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Dataflow:
    """What a block's backward reads, and how that follows from other values.

    saved  storages that the backward reads
    sizes  bytes of each; none of what a parameter or a constant holds anyway
    made   those that may be computed again, in the order of the program
    """

    saved: tuple[int, ...]
    sizes: Mapping[int, int]
    made: Mapping[int, Made]

    def needed(self, kept: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
        """(what is kept, what is computed again) where of what could be the storages in ``kept`` aren't."""
        held, again, left = set(), set(), list(self.saved)
        while left:
            storage = left.pop()
            if storage in held or storage in again:
                continue
            if storage in self.made and storage not in kept:
                again.add(storage)
                left += self.made[storage].reads
            else:
                held.add(storage)
        return frozenset(held), frozenset(again)

    def cost(self, kept: frozenset[int], rate: float) -> float:
        held, again = self.needed(kept)
        return rate * sum(self.sizes.get(s, 0) for s in held) + sum(self.made[s].seconds for s in again)

    def cheapest(self, rate: float) -> tuple[frozenset[int], frozenset[int]]:
        """(what is kept, what is computed again) at ``rate`` seconds for a byte."""
        found = [self.improved(start, rate) for start in (frozenset(self.made), frozenset[int]())]
        return self.needed(min(found, key=lambda kept: self.cost(kept, rate)))

    def improved(self, kept: frozenset[int], rate: float) -> frozenset[int]:
        """Single storages kept, or no longer kept, for as long as that costs less."""
        least, better, now = self.cost(kept, rate), True, set(kept)
        readers = self.readers(kept)
        while better:
            better = False
            for storage in [s for s in self.made if readers[s]]:
                more, changed = self.change(storage, now, readers, rate) if readers[storage] else (0.0, Counter[int]())
                if more < -1e-12 * least:
                    drops, better, least = storage in now, True, least + more
                    readers.update(changed) if drops else readers.subtract(changed)
                    now ^= {storage}
        return frozenset(now)

    def readers(self, kept: frozenset[int]) -> Counter[int]:
        """How many read each storage: the backward, and what runs again."""
        found = Counter(self.saved)
        for storage in self.needed(kept)[1]:
            found.update(set(self.made[storage].reads))
        return found

    def change(
        self, storage: int, kept: Set[int], readers: Counter[int], rate: float
    ) -> tuple[float, Counter[int]]:
        """By how much the cost rises if this storage is kept where it isn't, or no longer kept where it is: what it is
        computed from is then no longer needed, or comes to be. And how many more, or fewer, read each storage."""
        drops, changed = storage in kept, Counter[int]()
        sign = 1.0 if drops else -1.0
        found, left = sign * (self.made[storage].seconds - rate * self.sizes.get(storage, 0)), [storage]
        while left:
            for read in set(self.made[left.pop()].reads):
                changed[read] += 1
                if changed[read] != (1 if drops else readers[read]) or (drops and readers[read]):
                    continue
                if read in self.made and read not in kept:
                    found += sign * self.made[read].seconds
                    left.append(read)
                else:
                    found += sign * rate * self.sizes.get(read, 0)
        return found, changed


def selective_of_walk(
    walk: Walk, live: LiveBytes, prices: Prices, alone_s: Mapping[str | Located, float], forward_s: float,
    input_bytes: int,
) -> SelectiveSaves:  # fmt: skip
    """An eager block, as it was walked through.

    live         where nothing is recomputed
    alone_s      forward seconds of each operator, the collectives of its body aside; of a redistribution those that are
                 left of its second run where products hide a part
    forward_s    of the block
    input_bytes  what full recomputation keeps
    """
    sizes = {s: size for s, size in walk.sizes.items() if s >= 0 or s in walk.entered}
    made: dict[int, Made] = {}
    seen: set[int] = set()
    for step in walk.steps:
        storage, reads = walk.storage(step.makes), tuple(dict.fromkeys(walk.storage(at) for at in step.reads))
        if storage >= 0 and storage not in seen and may_run_again(step, walk):
            assert storage not in reads, f"{step.makes} is a view"
            made[storage] = Made(step.makes, reads, step_seconds(step, walk.block, prices, alone_s))
        seen.add(storage)
    for storage, step in walk.beside.items():
        reads = tuple(dict.fromkeys(walk.storage(at) for at in step.reads))
        made[storage] = Made(step.makes, reads, products_seconds(step, walk.choice, prices))
    dropped = set(walk.activated.values())
    saved = tuple(dict.fromkeys(s for each in walk.saved for s in each if s not in dropped))
    held, again = Dataflow(saved, sizes, made).cheapest(rate_of(live.kept, input_bytes, forward_s))
    reads_of = {s: tuple(m.reads) for s, m in made.items() if s in again}
    reads_of |= {activated: (beside,) for beside, activated in walk.activated.items()}
    strategies = dict(walk.choice.strategies)
    standing = {s: stands_again(step, strategies, walk.mesh) for s, step in walk.beside.items() if s in again}
    activated_s, stands = activated_of(walk.beside.values(), strategies, prices)
    standing |= zip(walk.activated.values(), stands, strict=True)
    backs = [Backward(walk, adding, reads_of, standing).most for adding in (False, True)]
    kept = sum(sizes.get(s, 0) for s in held)
    inputs = sum(sizes[s] for s in walk.entered & held)
    rebuilt = max(0, backs[1] - kept - live.working)
    seconds = activated_s + sum(made[s].seconds for s in again)
    values = tuple(m.value for s, m in made.items() if s in again)
    return SelectiveSaves(kept, rebuilt, seconds, values, LiveBytes(kept, inputs, live.forward, *backs))


def may_run_again(step: Step, walk: Walk) -> bool:
    if step.operator is None:
        return True
    strategy = dict(walk.choice.strategies)[step.operator.node.name]
    return is_cheap(step.operator, strategy, walk.mesh)


def compiled_again(step: Step, strategies: Mapping[str, Strategy], mesh: Mesh) -> bool:
    """The same of a compiled segment, which keeps what any collective but a gather gives
    (``runtime.memory.selective``)."""
    if step.operator is not None:
        return is_cheap(step.operator, strategies[step.operator.node.name], mesh)
    assert step.hop is not None
    return all(each.forward in ("", "all-gather") for each in step.hop.steps or ())


def keeps_beside(step: Step) -> bool:
    """Whether it is a mixture that keeps something for its backward."""
    return step.operator is not None and is_mixture(step.operator) and step.operator.result_carries


def stands_again(step: Step, strategies: Mapping[str, Strategy], mesh: Mesh) -> int:
    """Bytes of what a mixture computes again in its backward."""
    assert step.operator is not None
    return round(rebuilt_bytes(step.operator, strategies[step.operator.node.name], mesh))


def is_cheap(operator: Operator, strategy: Strategy, mesh: Mesh) -> bool:
    """Whether an operator may run again: it is no product, sends and changes nothing, and follows from its operands."""
    if operator.rule.cost in DEAR or not operator.operands:
        return False
    if operator.node.op == READ_BUFFER or buffers_updated(operator.node):
        return False
    return not body_collectives(operator, strategy, mesh)


def activated_of(
    mixtures: Iterable[Step], strategies: Mapping[str, Strategy], prices: Prices
) -> tuple[float, list[int]]:
    """Seconds of computing again what mixtures' activations make, of all of them; and what stands then of each."""
    operators = [step.operator for step in mixtures if step.operator is not None]
    each = [activated_again(o, strategies[o.node.name], prices.mesh, prices.device) for o in operators]
    return sum(seconds for seconds, _ in each), [round(size) for _, size in each]


def step_seconds(step: Step, block: Block, prices: Prices, alone_s: Mapping[str | Located, float]) -> float:
    if step.operator is not None:
        return alone_s[step.operator.node.name]
    assert step.hop is not None
    known_s = alone_s.get(step.makes)
    return hop_seconds(step.hop, block, prices) if known_s is None else known_s


def products_seconds(step: Step, choice: BlockChoice, prices: Prices) -> float:
    """Of computing again what a mixture keeps beside its operands."""
    operator = step.operator
    assert operator is not None
    strategy = dict(choice.strategies)[operator.node.name]
    steps = sent_again(operator, strategy, prices.mesh)
    inside = (each for each in prices.inside(operator, strategy) if each.step in steps) if steps else ()
    sent = (each.forward_s - each.hidden_again_s for each in inside)
    return mixture_again_s(operator, strategy, prices.mesh, prices.device) + sum(sent)


def hop_seconds(hop: Hop, block: Block, prices: Prices) -> float:
    """Of a redistribution's forward."""
    kind = block.types()[hop.value]
    local = layout_bytes(kind, hop.target, prices.mesh)
    return sum(prices.step(step, True, local, kind).forward_s for step in hop.steps or ())


def rate_of(kept: int, input_bytes: int, forward_s: float) -> float:
    """Seconds of full recomputation for each byte that it frees."""
    return forward_s / max(kept - input_bytes, 1)


def selective_of_values(
    compiled: CompiledWalk, block: Block, choice: BlockChoice, live: LiveBytes, prices: Prices,
    alone_s: Mapping[str | Located, float], forward_s: float, input_bytes: int,
) -> SelectiveSaves:  # fmt: skip
    """A compiled block: as ``selective_of_walk``, each value in each layout a storage of its own."""
    mesh, types, steps, strategies = prices.mesh, compiled.types, compiled.steps, compiled.strategies
    values = kept_roots(steps, compiled.roots)
    beside = live.kept - values_bytes(values, types, mesh)
    located = dict.fromkeys(at for step in steps for at in (*step.reads, step.makes))
    number = {at: n for n, at in enumerate(located)}
    constant = {v.name for v in (*block.parameters, *block.externals, *block.buffers)}
    sizes = {n: layout_bytes(types[at[0]], at[1], mesh) for at, n in number.items() if at[0] not in constant}
    made = {}
    for step in steps:
        if compiled_again(step, strategies, mesh) and step.makes[0] not in constant:
            reads = tuple(number[at] for at in step.reads)
            made[number[step.makes]] = Made(step.makes, reads, step_seconds(step, block, prices, alone_s))
    saved = tuple(n for at, n in number.items() if at in values)
    mixtures = {len(number) + n: step for n, step in enumerate(s for s in steps if keeps_beside(s))}
    for n, step in mixtures.items():
        operator, reads = step.operator, tuple(number[at] for at in step.reads)
        assert operator is not None
        way = operator, strategies[operator.node.name], mesh
        sizes[n] = round(bytes_beside(*way))
        made[n] = Made(step.makes, reads, products_seconds(step, choice, prices))
        beside -= sizes[n] + round(activated_bytes(*way))
    saved = (*saved, *mixtures)
    held, again = Dataflow(saved, sizes, made).cheapest(rate_of(live.kept, input_bytes, forward_s))
    entering = {number.get((v.name, x)) for v, x in zip(block.inputs, choice.inputs, strict=True)}
    kept = beside + sum(sizes.get(n, 0) for n in held)
    inputs = sum(sizes[n] for n in held if n in entering)
    standing = {n: sizes[n] for n in again}
    activated_s, stands = activated_of(mixtures.values(), strategies, prices)
    for (n, step), activated in zip(mixtures.items(), stands, strict=True):
        if n in again:  # beside operands that are computed again, too
            operands = sum(sizes[read] for read in made[n].reads if read in again)
            activated += operands + stands_again(step, strategies, mesh)
        standing[n] = activated
    seconds, largest = activated_s + sum(made[n].seconds for n in again), max(standing.values(), default=0)
    moments = (kept - live.kept + largest + moment for moment in (live.backward, live.adding))
    found = LiveBytes(kept, inputs, live.forward, *moments)
    return SelectiveSaves(kept, largest, seconds, tuple(m.value for n, m in made.items() if n in again), found)
