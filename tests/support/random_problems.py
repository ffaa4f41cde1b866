"""Operator problems drawn at random: arrays alone, and small graphs priced by the registered rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.graph import Block, Model, Node, TensorType, Typed
from autoplan.ir.layout import I, Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem import Group, Problem, Tensor, build
from autoplan.search.intra_op.problem_inputs import prepare
from tests.support.hand_made import chain, f32, node

MOST = 60_000  # assignments of a problem that are tried
MESHES = (Mesh.of(dp=1, tp=2, mb=1), Mesh.of(dp=1, tp=4, mb=2), Mesh.of(dp=1, tp=2, tp2=2, mb=1))


def random_problem(seed: int) -> Problem:
    """Three to seven groups of two to four options; each but the first takes what another gives, some give several
    tensors; arcs between most layouts, some prices alike; some tensors and options keep bytes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 5, random.integers(3, 8))
    groups = tuple(random_group(random, index, int(size)) for index, size in enumerate(sizes))
    sources = {int(random.integers(0, end)) for end in range(1, len(sizes))} | {0}
    tensors = [random_tensor(random, sizes, source) for source in sorted(sources)]
    tensors += [random_tensor(random, sizes, int(random.integers(0, len(sizes)))) for _ in range(random.integers(0, 3))]
    return Problem(groups, tuple(tensors))


def random_group(random: np.random.Generator, index: int, size: int) -> Group:
    """A fifth of them cost nothing, as a boundary; a third hold bytes of a parameter."""
    options = tuple(Layout.of(1, {"tp": I}, MESHES[0]) for _ in range(size))
    time_s = random.uniform(0, 1e-3, size) * (random.random() > 0.2)
    state = random.integers(1, 9, size) * 1e6 * (random.random() < 0.3)
    kept = random.integers(0, 4, size) * 1e5 * (random.random() < 0.3)
    return Group(("node", 0, str(index)), options, time_s, state, kept)


def random_tensor(random: np.random.Generator, sizes: np.ndarray, source: int) -> Tensor:
    """One to three other groups take it, any of which may keep it."""
    count = int(random.integers(2, 5))
    others = [g for g in range(len(sizes)) if g != source]
    sinks = [int(g) for g in random.permutation(others)[: random.integers(1, 4)]]
    given = random.integers(0, count, sizes[source])
    taken = tuple((g, random.integers(0, count, sizes[g])) for g in sinks)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and random.random() < 0.8]
    alike = random.random() < 0.3
    arc_s = random.choice([0.0, 1e-4, 2e-4], len(pairs)) if alike else random.uniform(0, 5e-4, len(pairs))
    ends = [end for end in ((source, given), *taken) if random.random() < 0.5]
    keepers = tuple((g, np.where(random.random(len(at)) < 0.7, at, -1)) for g, at in ends)
    kept = random.integers(1, 9, count) * 1e6
    layouts = tuple(Layout.of(1, {"tp": R}, MESHES[0]) for _ in range(count))
    arcs = np.array(pairs, dtype=int).reshape(-1, 2)
    nothing_again = np.full(len(arcs), np.inf)
    return Tensor(0, "t", layouts, source, given, taken, arcs, arc_s, keepers, kept, nothing_again)


def random_model(seed: int) -> Model:
    """One block, two, or one that follows itself between two others: additions, activations and products over square
    tensors, any of which may read an earlier value, and several one parameter; then a mean."""
    random = np.random.default_rng(seed)
    x = f32(8, int(random.choice([4, 6, 8])))
    parts = int(random.choice([1, 1, 2, 3]))
    blocks = [random_block(random, x, first=i == 0, last=i == parts - 1) for i in range(parts)]
    order = (0, 1, 1, 2) if parts == 3 else tuple(range(parts))
    tied = {f"{len(order) - 1}.w": "0.w"} if parts > 1 and random.random() < 0.5 else None
    return chain("Small", (Typed("data", x),), tuple(blocks), order, tied=tied)


def random_block(random: np.random.Generator, x: TensorType, *, first: bool, last: bool) -> Block:
    values, nodes = ["x"], []
    read: dict[str, int] = {}
    if first:
        nodes.append(node("x", "aten.mul.Tensor", x, "%data", "%scale"))
    for i in range(int(random.integers(1, 4 if first and last else 2))):
        one, other = (pick(random, values, read) for _ in range(2))
        nodes.append(random_node(random, f"n{i}", x, one, other))
        values.append(f"n{i}")
    if not any("w" in n.operands for n in nodes):
        nodes.append(node("last", "aten.linear.default", x, f"%{values[-1]}", "%w"))
        values.append("last")
    if last:
        nodes.append(node("loss", "aten.mean.dim", f32(), f"%{values[-1]}", (0, 1), False))
    weights = (Typed("w", f32(x.shape[1], x.shape[1])), *((Typed("scale", f32(x.shape[1])),) if first else ()))
    inputs, externals = ((), (Typed("data", x),)) if first else ((Typed("x", x),), ())
    return Block(f"Small{first}{last}", inputs, externals, weights, (), tuple(nodes), (nodes[-1].name,))


def pick(random: np.random.Generator, values: list[str], read: dict[str, int]) -> str:
    """A value that fewer than two read yet, so that with what comes after them none has more than three readers."""
    left = [v for v in values if read.get(v, 0) < 2]
    name = str(random.choice(left)) if left else values[-1]
    read[name] = read.get(name, 0) + 1
    return name


def random_node(random: np.random.Generator, name: str, x: TensorType, one: str, other: str) -> Node:
    kind = str(random.choice(["linear", "linear", "add", "relu", "mul"]))
    if kind == "linear":
        return node(name, "aten.linear.default", x, f"%{one}", "%w")
    if kind == "relu":
        return node(name, "aten.relu.default", x, f"%{one}")
    return node(name, f"aten.{kind}.Tensor", x, f"%{one}", f"%{other}")


def real_problem(seed: int) -> Problem:
    """The problem of a random model on a random mesh, of whose options as many are left as can be tried."""
    random = np.random.default_rng(seed)
    mesh = MESHES[random.integers(0, len(MESHES))]
    topology = ClusterSpec.parse(str(random.choice(["1x4 cpu", "1x8 h100-sxm", "2x2 h100-sxm"]))).topology()
    prices = Prices(mesh, topology, True, True, mesh.size("mb"), 7.0, direct=len(mesh.operator_axes) > 1)
    prepared = prepare(random_model(seed), (), fuses=True, training=True)
    return thinned(build(formulate(prepared, mesh, prices, split_weights=False)), random)


def thinned(problem: Problem, random: np.random.Generator) -> Problem:
    """The problem with options of its largest groups ruled out, one after another, until all of it can be tried, and
    nothing gathered again (``test_gathered_again``)."""
    tensors = tuple(replace(t, again_s=np.full(len(t.arcs), np.inf)) for t in problem.tensors)
    problem = Problem(problem.groups, tensors)
    kept = [list(range(len(g.options))) for g in problem.groups]
    while math.prod(map(len, kept)) > MOST:
        largest = max(kept, key=len)
        largest.pop(int(random.integers(0, len(largest))))
    return with_options(problem, [np.array(keep) for keep in kept])


def with_options(problem: Problem, kept: Sequence[np.ndarray]) -> Problem:
    """The same with some of each group's options alone, by their numbers."""
    tensors = (
        replace(
            tensor,
            given=tensor.given[kept[tensor.source]],
            sinks=tuple((g, taken[kept[g]]) for g, taken in tensor.sinks),
            keepers=tuple((g, places[kept[g]]) for g, places in tensor.keepers),
            stands=None if tensor.stands is None else tensor.stands[kept[tensor.source]],
        )
        for tensor in problem.tensors
    )
    groups = (
        Group(g.key, tuple(g.options[i] for i in keep), g.time_s[keep], g.state_bytes[keep], g.kept_bytes[keep])
        for g, keep in zip(problem.groups, kept, strict=True)
    )
    return Problem(tuple(groups), tuple(tensors))
