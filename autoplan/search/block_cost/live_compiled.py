"""What one block holds while it runs compiled: from kernel to kernel, forward and backward.

What passes inside of a kernel (``cost.operators.fusion``) never stands. A result goes after the last kernel that reads
it, if the backward doesn't. The backward goes through the kernels in reverse: each makes the gradients of what it read,
lets go of those of what it made, and of what it was kept for. Views are one storage with what they are views of; a
value that several read has one gradient, into which all are added.

What a kernel makes element by element takes the place of what it reads last, if that is as large
(``torch._inductor.config.inplace_buffers``): the gradient of the logits is written over the logits. What a segment was
given stays: its inputs, parameters, and the gradients of its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator, Prices
from autoplan.cost.operators.kept_beside import activated_bytes, bytes_beside, passing_bytes
from autoplan.cost.prices import COPYING, HALF, layout_bytes
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import DTYPE_BYTES, Block
from autoplan.search.block_cost.live import LiveBytes
from autoplan.search.block_cost.live_forward import Located, Step, steps_of

EMBEDDING = "aten.embedding.default"
Roots = Mapping[Located, Located]
"""Of each view what it is a view of."""


@dataclass(frozen=True)
class Kernel:
    """One kernel, product or redistribution.

    reads, makes  storages, by their values
    gives         of what it reads, what has a gradient
    saved         what its backward reads
    beside        bytes that it keeps beside
    passing       bytes that stand for a moment: forward, backward before any gradient, and with all (``passing_bytes``)
    overwrites    whether it goes element by element over what it reads
    """

    reads: frozenset[Located]
    makes: frozenset[Located]
    gives: frozenset[Located]
    saved: frozenset[Located]
    beside: float
    passing: tuple[float, float, float]
    overwrites: bool


def roots_of(steps: Iterable[Step]) -> Roots:
    """Of views, and of redistributions that leave a value where it is."""
    roots: dict[Located, Located] = {}
    for step in steps:
        if step.hop is not None:
            same = not any(each.forward or each.op in COPYING for each in step.hop.steps or ())
        else:
            same = step.operator is not None and step.operator.rule.cost == "free" and bool(step.reads)
        if same:
            roots[step.makes] = roots.get(step.reads[0], step.reads[0])
    return roots


def kept_roots(steps: Iterable[Step], roots: Roots) -> frozenset[Located]:
    """What the backward reads, each storage once."""
    found = (kept_of(step) for step in steps)
    return frozenset(roots.get(at, at) for each in found for at in each)


def kept_of(step: Step) -> list[Located]:
    if step.operator is None:
        return []
    return [step.makes if place == "out" else step.reads[int(place)] for place in step.operator.keeps]


class CompiledWalk:
    """A walk through one compiled block.

    steps     its statements
    gathered  parameters as they are used, where that is more than what is stored of them: they stay for the backward
    kept      all that stays
    """

    def __init__(self, block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices) -> None:
        self.mesh, self.types, self.carries = prices.mesh, block.types(), block.carries_gradient()
        self.training = prices.training
        self.strategies = dict(choice.strategies)
        self.steps = steps = list(steps_of(block, choice, operators, self.mesh))
        self.roots = roots_of(steps)
        self.parameters = set(choice.parameters)
        own, stored = {name for name, _ in choice.parameters}, dict(choice.parameters)
        self.gathered = {
            self.root(step.makes) for step in steps
            if step.makes[0] in own and self.bytes(step.makes) > self.bytes((step.makes[0], stored[step.makes[0]]))
        }  # fmt: skip
        self.kept = (kept_roots(steps, self.roots) | self.gathered) if self.training else frozenset[Located]()
        self.outputs = {self.root(at) for at in zip(block.outputs, choice.outputs, strict=True)}
        self.inputs = {(v.name, layout) for v, layout in zip(block.inputs, choice.inputs, strict=True)}
        self.given = self.inputs | self.parameters | self.outputs
        self.kernels = self.kernels_of(steps)

    def root(self, at: Located) -> Located:
        return self.roots.get(at, at)

    def bytes(self, at: Located) -> int:
        return layout_bytes(self.types[at[0]], at[1], self.mesh)

    def total(self, values: Iterable[Located]) -> int:
        return sum(map(self.bytes, values))

    def kernels_of(self, steps: Sequence[Step]) -> list[Kernel]:
        """In the order in which the last operator of each stands."""
        members: dict[object, list[Step]] = {}
        for place, step in enumerate(steps):
            if step.makes not in self.roots:
                key = step.operator.kernel if step.operator is not None else place
                members[key] = [*members.pop(key, []), step]
        inside = {step.makes for step in steps if step.operator is not None and not step.operator.writes}
        inside -= {self.root(at) for step in steps if step.hop is not None for at in step.reads}
        return [self.kernel(each, inside) for each in members.values()]

    def kernel(self, steps: Sequence[Step], inside: set[Located]) -> Kernel:
        makes = frozenset(step.makes for step in steps) - inside
        reads = frozenset(self.root(at) for step in steps for at in step.reads) - inside - makes
        gives = frozenset(at for at in reads if at[0] in self.carries)
        saved = frozenset(self.root(at) for step in steps for at in kept_of(step)) | (reads & self.gathered)
        operators = [step.operator for step in steps if step.operator is not None]
        given = [(o, self.strategies[o.node.name], self.mesh) for o in operators]
        beside = sum(bytes_beside(*one) + activated_bytes(*one) for one in given)
        overwrites = bool(operators) and all(operator.rule.cost == "memory" for operator in operators)
        each = [passing_bytes(*one) for one in given]
        passing = each[0] if len(each) == 1 else (0.0, 0.0, 0.0)  # a mixture is a kernel by itself
        passing = (*passing[:2], passing[2] + self.widened(steps))
        return Kernel(reads, makes, gives, saved, beside if self.training else 0.0, passing, overwrites)

    def widened(self, steps: Sequence[Step]) -> float:
        """Bytes of tables' gradients as the compiler sums them: in float32, before they are of half precision."""
        tables = (step.reads[0] for step in steps if step.operator is not None and step.operator.node.op == EMBEDDING)
        halves = (at for at in tables if self.types[at[0]].dtype in HALF and at[0] in self.carries)
        return sum(DTYPE_BYTES["float32"] / DTYPE_BYTES[self.types[at[0]].dtype] * self.bytes(at) for at in halves)

    def live(self) -> LiveBytes:
        if not self.training:
            return LiveBytes(forward=self.forward())
        kept = self.kept_bytes
        backward = self.backward()  # a compiled one gives all gradients at once, when it has ended
        return LiveBytes(kept, self.total(self.inputs & self.kept), self.forward(), backward, backward)

    @property
    def kept_bytes(self) -> int:
        return round(self.total(self.kept) + sum(kernel.beside for kernel in self.kernels))

    def forward(self) -> int:
        """At most in the forward."""
        last = {at: place for place, kernel in enumerate(self.kernels) for at in kernel.reads}
        held = most = 0.0
        alive: set[Located] = set()
        for place, kernel in enumerate(self.kernels):
            alive |= kernel.makes
            held += self.total(kernel.makes) + kernel.beside
            touched = (kernel.reads | kernel.makes) & alive - self.kept - self.outputs
            gone = {at for at in touched if last.get(at, place) <= place}
            over = self.written_over(kernel.makes, gone & kernel.reads) if kernel.overwrites else 0
            most = max(most, held - over + kernel.passing[0])
            held, alive = held - self.total(gone), alive - gone
        return round(most)

    def backward(self) -> int:
        """At most in the backward; parameters' gradients stay until its end."""
        reading = Counter(at for kernel in self.kernels for at in kernel.saved)
        grads = {at for at in self.outputs if at[0] in self.carries}
        held: float = self.kept_bytes + self.total(grads)
        most = held
        for kernel in reversed(self.kernels):
            reading.subtract(kernel.saved)
            gone = {at for at in kernel.saved if not reading[at]}
            if kernel.makes & grads:
                made, read = kernel.gives - grads, kernel.makes & grads
                over = self.written_over(made, [*gone - self.given, *read - self.outputs]) if kernel.overwrites else 0
                _, before, after = kernel.passing
                most = max(most, held + before, held + self.total(made) - over + after)
                held += self.total(made)
                held, grads = held - self.total(read), (grads | made) - read
            held -= self.total(gone) + kernel.beside
        return round(most)

    def written_over(self, made: Iterable[Located], ended: Iterable[Located]) -> int:
        """Bytes of what is made that take the place of as many that nobody reads any more."""
        return sum((Counter(map(self.bytes, made)) & Counter(map(self.bytes, ended))).elements())
