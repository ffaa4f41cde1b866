"""A compiled graph, kernel by kernel: what inductor computes in one pass over memory is one call, and what stays inside
of it takes no memory.

Inductor's rules for a GPU, of its own defaults (``torch._inductor.config``). An elementwise result isn't written but
computed where it is read, unless a call that is no kernel of its own making (a product, a collective) wants it, or the
graph's end, or several readers while it reads much. Reductions are written. Of what is written, operators over the same
elements that follow from one another run in one kernel, if nothing on the way between them lies outside of it.

An elementwise result takes the place of what its kernel reads and nobody reads later, where both are laid out alike
(``torch._inductor.config.inplace_buffers``). What the forward kept for the backward may be overwritten so, too: torch
donates it (``torch._functorch.config.donated_buffer``).
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor import config
from torch.utils._pytree import tree_leaves

from autoplan.cost.operators.fusion import joined_by_depth
from autoplan.rehearsal.device.accelerator import listener, unheard
from autoplan.rehearsal.device.call_recorder import is_view

NAMED = 4  # operators that a kernel's name tells


def threshold(name: str) -> int:
    """One of inductor's: what a user has set, else its own. Since torch 2.13 that depends on the device, and the
    public value is None until then; before, the public one is it."""
    found = getattr(config, name, None)
    return int(getattr(config, f"_{name}_default") if found is None else found)


VIEWS = ("_unsafe_view", "alias", "detach")
"""Names of operators that inductor makes no kernel of, beside those whose schema says so."""
ELEMENTWISE = ("arange", "cat", "clone", "constant_pad_nd", "embedding", "full", "full_like", "gather", "index",
               "index_select", "iota", "scalar_tensor", "select_scatter", "slice_scatter")  # fmt: skip
"""Those that it computes element by element, beside those that are tagged so. What is gathered from is computed there,
too, as far as it isn't written anyway."""


FILLING = ("_unsafe_index_put", "_unsafe_masked_index_put_accumulate", "index_put", "scatter_add")
"""Those that it lowers to a copy of the first operand and writes into it: one tensor, where nobody else reads that."""


OWN = ("aten", "prims")
"""Namespaces of operators that send nothing."""


def fused(graph: fx.GraphModule, donated: frozenset[str] = frozenset()) -> fx.GraphModule:
    """The same values from a graph whose calls are kernels.

    donated  names of the arguments that nobody reads beside it
    """
    return _Fused(graph, donated).written()


def kept_alone(forward: fx.GraphModule, kept: int) -> frozenset[str]:
    """Of the last ``kept`` results of a forward graph, which the backward gets, the names of those that it has alone:
    no argument of the forward, no result that a user has, nor a view of one."""
    views = _Views(forward.graph)
    results = [x for x in forward.graph.output_node().args[0] if isinstance(x, fx.Node)]  # type: ignore[union-attr]
    own, saved = results[: len(results) - kept], results[len(results) - kept :]
    others = Counter(views.base[x] for x in {*own, *saved})
    others.update(views.base[x] for x in own)  # what is both a result and kept counts twice
    return frozenset(x.name for x in saved if others[views.base[x]] == 1 and views.base[x].op != "placeholder")


class _Views:
    """base  of each value the one that it is a view of, itself where it is none"""

    def __init__(self, graph: fx.Graph) -> None:
        self.base: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            self.base[node] = self.base[node.all_input_nodes[0]] if is_a_view(node) else node


class _Fused:
    """base     as of ``_Views``
    reads       of each value that isn't written, and of each that is, the written ones that it is computed from
    written_by  the kernel of each value that lies in memory or in a kernel, under one of its values
    """

    def __init__(self, graph: fx.GraphModule, donated: frozenset[str]) -> None:
        self.graph, self.nodes, self.donated = graph, list(graph.graph.nodes), donated
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.base = _Views(graph.graph).base
        self.reads: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.stored = self.in_memory()
        self.kernels = self.joined()
        self.readers: dict[fx.Node, set[fx.Node]] = {}
        for node in self.stored:
            for read in self.reads[node]:
                self.readers.setdefault(read, set()).add(self.kernels[node])

    def in_memory(self) -> list[fx.Node]:
        """The values that are written, and all that are no kernel's, in order."""
        wanted = {self.base[x] for node in self.nodes for x in realized_operands(node)}
        users = Counter(self.base[x] for n in self.nodes if not is_a_view(n) for x in n.all_input_nodes)
        counts: dict[fx.Node, int] = {}
        found = []
        for node in (n for n in self.nodes if self.base[n] is n):
            given = [self.base[x] for x in node.all_input_nodes]
            count = 1 + sum(counts.get(x, 0) for x in given)
            reads = dict.fromkeys(r for x in given for r in ((x,) if x not in counts else self.reads[x]))
            self.reads[node] = tuple(reads)
            much = len(reads) > config.realize_reads_threshold or count > threshold("realize_opcount_threshold")
            many = len(reads) > threshold("realize_acc_reads_threshold") or (users[node] > 1 and much)
            if node in wanted or many or not is_elementwise(node):
                found.append(node)
            else:
                counts[node] = count
        return found

    def joined(self) -> Mapping[fx.Node, fx.Node]:
        """The kernel of each written value; a collective comes after those before it."""
        works = {node: work_of(node) for node in self.stored if is_elementwise(node) or is_reduction(node)}
        after: dict[fx.Node, Sequence[fx.Node]] = {}
        last: tuple[fx.Node, ...] = ()
        for node in self.stored:
            after[node] = self.reads[node]
            if is_an_operator(node) and node.target.namespace not in OWN:  # type: ignore[union-attr]
                after[node], last = (*self.reads[node], *last), (node,)
        return {node: node for node in self.stored} | joined_by_depth(after, works)

    def order(self) -> Iterator[list[fx.Node]]:
        """The values of each kernel, kernels in an order in which each has what it reads, as near to the graph's as may
        be."""
        members: dict[fx.Node, list[fx.Node]] = {}
        for node in self.stored:
            members.setdefault(self.kernels[node], []).append(node)
        waits = {k: {self.kernels[r] for n in own for r in self.reads[n]} - {k} for k, own in members.items()}
        follow: dict[fx.Node, list[fx.Node]] = {}
        for kernel, others in waits.items():
            for other in others:
                follow.setdefault(other, []).append(kernel)
        missing = {kernel: len(others) for kernel, others in waits.items()}
        ready = [(self.place[members[k][-1]], k) for k, count in missing.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, kernel = heapq.heappop(ready)
            yield members[kernel]
            for other in follow.get(kernel, ()):
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(ready, (self.place[members[other][-1]], other))

    def last_reads(self, sequence: Sequence[Sequence[fx.Node]]) -> Mapping[fx.Node, float]:
        """The number of the last kernel that reads each value; never, of what isn't the graph's own to overwrite."""
        last: dict[fx.Node, float] = {}
        for number, members in enumerate(sequence):
            last |= {read: number for node in members for read in self.reads[node]}
        given = [n for n in self.nodes if n.op in ("placeholder", "get_attr") and n.name not in self.donated]
        results = [self.base[x] for x in self.graph.graph.output_node().all_input_nodes]
        return last | dict.fromkeys((*given, *results), math.inf)

    def written(self) -> fx.GraphModule:
        new = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}

        def value(node: fx.Node) -> fx.Node:
            if node not in known:
                known[node] = new.node_copy(node, value)
            return known[node]

        sequence = list(self.order())
        last = self.last_reads(sequence)
        for number, members in enumerate(sequence):
            if not (is_elementwise(members[0]) or is_reduction(members[0])):
                first = members[0]
                if fills(first) and last.get(self.base[first.all_input_nodes[0]], number) <= number:
                    known[first] = new.call_function(filled(first), *fx.node.map_arg((first.args, first.kwargs), value))
                value(first)
                continue
            kernel = _Kernel(self, members)
            kernel.take_places([read for read in kernel.reads if last.get(read, number) <= number])
            self.graph.add_submodule(f"kernel_{number}", kernel)
            made = new.call_module(f"kernel_{number}", tuple(value(read) for read in kernel.reads))
            known |= {node: new.call_function(operator.getitem, (made, n)) for n, node in enumerate(kernel.writes)}
        return fx.GraphModule(self.graph, new)


class _Kernel(nn.Module):
    """One kernel: what it reads and what it writes."""

    def __init__(self, fused: _Fused, members: Sequence[fx.Node]) -> None:
        super().__init__()
        mine = fused.kernels[members[0]]
        own = set(members)
        self.reads = list(dict.fromkeys(r for n in members for r in fused.reads[n] if r not in own))
        self.writes = [n for n in members if fused.readers.get(n, set()) != {mine}]
        inside = fx.Graph()
        known = {read: inside.placeholder(f"given_{place}") for place, read in enumerate(self.reads)}

        def value(node: fx.Node) -> fx.Node:
            if node not in known:
                known[node] = inside.node_copy(node, value)
            return known[node]

        inside.output(tuple(value(node) for node in self.writes))
        names = dict.fromkeys(n.target._opname for n in inside.nodes if is_an_operator(n) and not is_a_view(n))
        self.name = f"fused {', '.join(list(names)[:NAMED])}"
        self.inside = fx.GraphModule(fused.graph, inside)
        self.places: dict[int, int] = {}

    def take_places(self, ended: Sequence[fx.Node]) -> None:
        """Writes elementwise results over what nobody reads any more, one each."""
        free = [self.reads.index(read) for read in ended]
        for number, node in enumerate(self.writes):
            place = next((p for p in free if is_elementwise(node) and alike(self.reads[p], node)), None)
            if place is not None:
                self.places[number] = place
                free.remove(place)

    def forward(self, *given: Any) -> Any:
        if not given:  # constants
            return fx.Interpreter(self.inside).run()
        with unheard(given):
            made = list(fx.Interpreter(self.inside).run(*given))
            for number, place in self.places.items():
                made[number] = given[place].as_strided(made[number].shape, made[number].stride())
        listener().fused(self.name, given, made)
        return tuple(made)


def is_an_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def is_a_view(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    return node.target is operator.getitem or (
        is_an_operator(node) and (is_view(node.target) or node.target._opname in VIEWS)  # type: ignore[union-attr]
    )


def is_elementwise(node: fx.Node) -> bool:
    if not is_an_operator(node) or is_a_view(node):
        return False
    target: Any = node.target
    return target.namespace in OWN and not target._schema.is_mutable and (
        torch.Tag.pointwise in target.tags or target._opname in ELEMENTWISE or is_set_constant(node)
    )  # fmt: skip


def is_set_constant(node: fx.Node) -> bool:
    """Whether a constant tensor gets another constant at one place of each row, as a cross-entropy's backward makes it:
    inductor compares places instead (``scatter_upon_const_tensor`` of its joint graph's passes)."""
    if node.target is not torch.ops.aten.scatter.value or not config.optimize_scatter_upon_const_tensor:
        return False
    constant, dim, index = node.args[0], node.args[1], node.args[2]
    assert isinstance(constant, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    wanted = [*constant.meta["val"].shape]
    wanted[dim] = 1
    return constant.target is torch.ops.aten.full.default and [*index.meta["val"].shape] == wanted


def fills(node: fx.Node) -> bool:
    return is_an_operator(node) and node.target.namespace in OWN and node.target._opname in FILLING and alike(  # type: ignore[union-attr]
        node.all_input_nodes[0], node
    )  # fmt: skip


def filled(node: fx.Node) -> Callable[..., Tensor]:
    """The operator, written into its first operand's memory."""
    function: Any = node.target

    def run(*args: Any, **kwargs: Any) -> Tensor:
        with unheard(args):
            made = function(*args, **kwargs)
            made = args[0].as_strided(made.shape, made.stride())
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        listener().fused(f"aten.{function._opname}", given, [made])
        return made

    run.__name__, run.function = function._opname, function  # type: ignore[attr-defined]
    return run


def is_reduction(node: fx.Node) -> bool:
    return is_an_operator(node) and torch.Tag.reduction in node.target.tags  # type: ignore[union-attr]


def realized_operands(node: fx.Node) -> Sequence[fx.Node]:
    """The operands that are to lie in memory."""
    computed = is_a_view(node) or is_elementwise(node) or is_reduction(node)
    return () if computed else node.all_input_nodes


def alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two tensors are laid out alike in memory; dims of one may be several of the other's as one."""
    x, y = one.meta["val"], other.meta["val"]
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or (x.dtype, x.numel()) != (y.dtype, y.numel()):
        return False
    if (x.shape, x.stride()) == (y.shape, y.stride()):
        return True
    borders, others = (set(accumulate(reversed(each.shape), operator.mul)) for each in (x, y))
    return x.is_contiguous() and y.is_contiguous() and (borders <= others or others <= borders)


def work_of(node: fx.Node) -> int:
    """Elements that it goes over."""
    values = [node.meta["val"]]
    if is_reduction(node):
        values += [x.meta["val"] for x in node.all_input_nodes]
    return max(elements(values))


def elements(values: Iterable[Any]) -> list[int]:
    return [math.prod(x.shape) for x in tree_leaves(list(values)) if isinstance(x, Tensor)] or [0]
