"""The walk back through a block: gradients made and passed on, what was saved let go.

Gradients that pass through an operator as they are (a sum's, a view's) are one storage with its result's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from autoplan.cost import Operator
from autoplan.cost.operators.eager_temporaries import holds_of, passes_gradient
from autoplan.cost.prices import COPYING
from autoplan.search.block_cost.live_forward import Located, Step, Walk

PRODUCTS = ("matmul", "attention", "experts")


class Backward:
    """The walk back. ``adding``: parameters' gradients are added to sums and gone; else they stay.

    again   of the storages that are dropped and computed again, what is read for that
    rebuilt bytes of those that stand otherwise than they are kept
    held    bytes of what is alive
    there   of what is dropped, what stands again
    grads   the storage of each value's gradient; ``users`` counts the values that share one
    """

    def __init__(
        self, walk: Walk, adding: bool, again: Mapping[int, Sequence[int]] = MappingProxyType({}),
        rebuilt: Mapping[int, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.walk, self.adding, self.again, self.rebuilt = walk, adding, again, rebuilt
        self.there: set[int] = set()
        self.grads: dict[Located, int] = {}
        self.users: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.owned = {s for s in walk.sizes if s >= 0} | walk.entered
        self.reading = Counter(s for saved in walk.saved for s in saved)
        self.reading.update(s for reads in again.values() for s in dict.fromkeys(reads))
        self.held = sum(walk.sizes[s] for s in self.reading if s in self.owned and s not in again)
        self.most = self.held
        for name, layout in zip(walk.block.outputs, walk.choice.outputs, strict=True):
            self.give((name, layout), walk.make(walk.bytes((name, layout))))
        for step, saved in zip(reversed(walk.steps), reversed(walk.saved), strict=True):
            self.back(step, saved)

    def give(self, at: Located, storage: int, size: int | None = None) -> None:
        """Adds a gradient to a value's; into what stands there, where nobody shares it, else into a sum of its own."""
        size = self.walk.gradient_bytes(at) if size is None else size
        if storage not in self.sizes:
            self.sizes[storage] = size
            self.held += size
        self.users[storage] += 1
        self.most = max(self.most, self.held)
        if at not in self.grads:
            self.grads[at] = storage
            return
        before = self.grads[at]
        if self.users[before] > 1:
            total = self.walk.make(size)
            self.sizes[total], self.users[total] = size, 1
            self.held += size
            self.most = max(self.most, self.held)
            self.grads[at] = total
            self.drop(before)
        self.drop(storage)

    def drop(self, storage: int) -> None:
        self.users[storage] -= 1
        if self.users[storage] == 0:
            self.held -= self.sizes[storage]

    def beside(self, bytes: float) -> None:
        self.most = max(self.most, self.held + round(bytes))

    def back(self, step: Step, saved: Sequence[int]) -> None:
        """One operator's or redistribution's backward."""
        gradient = self.grads.pop(step.makes, None)
        for storage in saved:
            self.rebuild(storage)
        if gradient is not None:
            if step.operator is not None:
                self.through(step, step.operator, gradient)
            else:
                self.moved(step, gradient)
            self.drop(gradient)
        for storage in saved:
            self.let_go(storage)

    def rebuild(self, storage: int) -> None:
        """Computes again what was dropped, and before that what it follows from."""
        if storage not in self.again or storage in self.there:
            return
        reads = dict.fromkeys(self.again[storage])
        for read in reads:
            self.rebuild(read)
        self.there.add(storage)
        self.held += self.stands(storage)
        self.most = max(self.most, self.held)
        for read in reads:
            if read in self.again:
                self.let_go(read)

    def stands(self, storage: int) -> int:
        return self.rebuilt.get(storage, self.walk.sizes[storage])

    def let_go(self, storage: int) -> None:
        """One reader fewer; what nobody reads any more goes, and what was kept to compute it again."""
        self.reading[storage] -= 1
        if self.reading[storage]:
            return
        if storage in self.there or (storage in self.owned and storage not in self.again):
            self.held -= self.stands(storage)
        for read in dict.fromkeys(self.again.get(storage, ())):
            if read not in self.again:
                self.let_go(read)

    def through(self, step: Step, operator: Operator, gradient: int) -> None:
        walk = self.walk
        holds = holds_of(operator.node.op, walk.device, step.body, len(step.reads))
        sizes = [walk.bytes(at) for at in step.reads]
        _, before, after = walk.passing(operator)
        self.beside(max(holds.backward(sizes, walk.bytes(step.makes)), before))
        made: list[tuple[Located, int]] = []
        for place, (at, carries) in enumerate(zip(step.reads, operator.carries, strict=True)):
            if not carries:
                continue
            whole = sizes[place] == walk.bytes(step.makes) or operator.node.op in ("aten.cat.default",)
            passes = self.is_free(operator) or passes_gradient(operator.node.op, place)
            if passes and whole and operator.rule.cost not in PRODUCTS:
                made.append((at, gradient))
            else:
                made.append((at, walk.make(walk.gradient_bytes(at))))
        for at, storage in made:
            self.arrive(at, storage)
        self.beside(after + sum(self.walk.gradient_bytes(at) for at, _ in made if self.is_added(at)))

    def is_free(self, operator: Operator) -> bool:
        """Whether the gradient is a view of the result's: views' are, but for parts, which are laid into zeros."""
        return operator.rule.cost == "free" and operator.node.op not in ("aten.slice.Tensor", "aten.select.int")

    def is_added(self, at: Located) -> bool:
        """Whether its gradient is added to a sum, and gone, once its operator has made all that it makes."""
        return at[0] in self.walk.parameters and self.walk.storage(at) < 0 and self.adding

    def arrive(self, at: Located, storage: int) -> None:
        if self.is_added(at):
            self.beside(self.walk.gradient_bytes(at))
        else:
            self.give(at, storage)

    def moved(self, step: Step, gradient: int) -> None:
        assert step.hop is not None
        at = step.reads[0]
        written = [s.op for s in (step.hop.steps or ()) if s.backward or s.op in COPYING]
        self.arrive(at, self.walk.make(self.walk.bytes(at)) if written else gradient)
        beside = {"all_gather": step.makes, "reduce_scatter": at, "shard_invariant": at, "all_to_all": at}
        dims = [dim for s in (step.hop.steps or ()) for dim in s.dims]
        taken = [self.walk.bytes(beside[op]) for op in written if op in beside]
        self.beside(max(taken, default=0) if any(dims) else 0)


