"""A large plan made small enough for eight local processes: axes of size 2, few layers, small dims.

The program keeps its structure, strategies and redistributions; what shrinks are sizes. A dim shrinks to a few
entries a shard, together with every dim that is tied to it; sizes that an operator's arguments depend on stay.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autoplan.ir.choice import Chosen, Hop, StageChoice
from autoplan.ir.graph import Argument, Model, Node, Parameter, Segment, TensorType, Typed
from autoplan.ir.mesh import EXPERT, MICROBATCH, TENSOR, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered, TypedValue
from autoplan.lower.after_search import program_of
from autoplan.rules.registry import factor_sizes, rule_of
from autoplan.trace.passes.stacked_weights import restacked
from autoplan.verify.atoms import Atoms, Dim

Key = tuple[int, str]  # block index (-1: the model's own), value name
MODEL = -1
SAFE_VIEWS = ("reshape", "expand", "transpose", "permute", "unsqueeze", "squeeze", "to", "arange", "full")
FIXED = ("select", "cat", "index", "roll", "top_indices")  # their arguments name sizes of whole dims
LARGEST = 2  # members of an axis in the small plan
SEGMENTS_OF_A_RUN = 2
SMALLEST = 8  # a layer norm over two elements has no gradient, and what is left of it is rounding


def shrink(record: PlanRecord) -> tuple[PlanRecord, str]:
    """The small plan, and a sentence that says what was shrunk."""
    dims = Dims(record.model)
    chosen, model = shrink_depth(record.chosen, record.model)
    mesh = Mesh.of(**{axis.name: min(axis.size, LARGEST) for axis in record.chosen.mesh.axes})
    sizes = small_sizes(dims, program_of(record), mesh)
    small = shrink_model(model, dims, sizes)
    tensor = tuple(mesh.size(axis) for axis in TENSOR if axis in mesh)
    tp, pp, data, cp = mesh.tensor_size, mesh.size("pp"), mesh.size(EXPERT), mesh.context_size
    ep = math.prod(mesh.size(axis) for axis in chosen.parallelism.folding.axes)
    etp = math.prod(mesh.size(axis) for axis in TENSOR if axis not in chosen.parallelism.folding.axes)
    dp = mesh.size("dp") * data
    parallelism = replace(chosen.parallelism, dp=dp, tp=tp, pp=pp, ep=ep, etp=etp, cp=cp, tensor=tensor)
    blocks = tuple(replace(b, hops=tuple(map(without_factors, b.hops))) for b in chosen.blocks)
    chosen = replace(chosen, blocks=blocks, mesh=mesh, microbatches=mesh.size(MICROBATCH), parallelism=parallelism)
    note = (
        f"the plan on mesh {Mesh(record.chosen.mesh.device_axes)} was shrunk to {Mesh(mesh.device_axes)}, "
        f"{len(record.model.segments)} segments to {len(small.segments)}, dims to match"
    )
    return replace(record, model=small, chosen=chosen), note


def without_factors(hop: Hop) -> Hop:
    """Steps over prime factors of an axis are sought anew: the small mesh has other ones."""
    factored = hop.steps is not None and any("." in step.axis or "." in step.spec for step in hop.steps)
    return replace(hop, steps=None) if factored else hop


class Dims:
    """The dims of every value of a model, as products of atoms."""

    def __init__(self, model: Model) -> None:
        self.atoms = Atoms()
        self.of: dict[Key, tuple[Dim, ...]] = {}
        named = {v.name: v.type for v in model.batch} | {p.name: p.type for p in model.parameters}
        for name, kind in (named | {b.name: b.type for b in model.buffers}).items():
            self.enter((MODEL, name), kind)
        self.walk(MODEL, model.constants, named | {b.name: b.type for b in model.buffers})
        for index, block in enumerate(model.blocks):
            for value in (*block.inputs, *block.externals, *block.parameters, *block.buffers):
                self.enter((index, value.name), value.type)
            self.walk(index, block.nodes, block.types())
        self.connect(model)

    def enter(self, key: Key, kind: TensorType) -> None:
        self.of[key] = tuple(Dim(self.atoms.new(size)) for size in kind.shape)

    def walk(self, block: int, nodes: Sequence[Node], types: dict[str, TensorType]) -> None:
        types = {**types, **{node.name: node.type for node in nodes}}
        for node in nodes:
            self.of[(block, node.name)] = self.result_dims(block, node)
            self.follow(block, node, types)

    def result_dims(self, block: int, node: Node) -> tuple[Dim, ...]:
        """The dims of a result; one that a slice or a pad shifts is its operand's with another offset."""
        dims = [Dim(self.atoms.new(size)) for size in node.type.shape]
        name = node.op.split(".")[1]
        if name in ("slice", "constant_pad_nd"):
            source = self.of[(block, node.operands[0])]
            for i, (before, size) in enumerate(zip(source, node.type.shape, strict=True)):
                old = self.atoms.size(before, {})
                if old != size and keeps_the_rest(node, i, old) and len(self.atoms.flat(before.atoms)) == 1:
                    dims[i] = Dim(before.atoms, before.offset + size - old)
                elif old != size:
                    self.atoms.freeze(before)
                    self.atoms.freeze(dims[i])
                else:
                    self.atoms.equate(dims[i], Dim(before.atoms)) if not before.offset else None
                    dims[i] = before
        return tuple(dims)

    def follow(self, block: int, node: Node, types: dict[str, TensorType]) -> None:
        """Equates the dims that share a factor; freezes those that the operator's arguments name."""
        rule = rule_of(node, types)
        operands = [types[name] for name in node.operands]
        factors = {f: Dim(self.atoms.new(n)) for f, n in factor_sizes(rule, operands, node.type).items()}
        given = dict.fromkeys(factors, False)
        name = node.op.split(".")[1]
        keys = [(block, operand) for operand in node.operands] + [(block, node.name)]
        for key, terms in zip(keys, (*rule.operands, rule.result), strict=True):
            for dim, term in zip(self.of[key], terms, strict=True):
                if len(term) == 1 and not given[term[0]]:
                    factors[term[0]], given[term[0]] = dim, True
                elif term:
                    atoms = tuple(a for f in term for a in factors[f].atoms)
                    offset = factors[term[0]].offset if len(term) == 1 else 0
                    given |= dict.fromkeys(term, True)
                    self.atoms.equate(dim, Dim(atoms, offset))
        for factor in rule.whole_factors:
            if factor in factors and freezes(name):
                self.atoms.freeze(factors[factor])
        if node.op.startswith("aten.embedding") and block != MODEL:
            return
        if rule.cost == "free" and name not in (*SAFE_VIEWS, "slice", "constant_pad_nd"):
            for key in keys:
                for dim in self.of[key]:
                    if not dim.offset:
                        self.atoms.freeze(dim)

    def connect(self, model: Model) -> None:
        """Parameters, constants and activations are the same dims on both sides of a block's boundary."""
        before: list[Key] = []
        for segment in model.segments:
            block = model.blocks[segment.block]
            pairs = list(zip(segment.parameters, block.parameters, strict=True))
            pairs += list(zip(segment.buffers, block.buffers, strict=True))
            pairs += list(zip(segment.externals, block.externals, strict=True))
            for outer, inner in pairs:
                self.same((MODEL, outer), (segment.block, inner.name))
            for key, value in zip(before, block.inputs, strict=True):
                self.same(key, (segment.block, value.name))
            before = [(segment.block, name) for name in block.outputs]

    def same(self, one: Key, other: Key) -> None:
        for a, b in zip(self.of[one], self.of[other], strict=True):
            if a.offset == b.offset:
                self.atoms.equate(a, b)
            else:
                self.atoms.freeze(a)
                self.atoms.freeze(b)

    def shape(self, key: Key, sizes: dict[int, int]) -> tuple[int, ...]:
        return tuple(self.atoms.size(dim, sizes) for dim in self.of[key])


def keeps_the_rest(node: Node, dim: int, size: int) -> bool:
    """Whether the result is the operand less a few leading entries, or with padding: its size follows an offset."""
    if node.op.startswith("aten.constant_pad_nd"):
        return True
    return node.args[1] == dim and node.args[3] == size and int(str(node.args[2])) <= 2


def freezes(name: str) -> bool:
    """Whether the operator's arguments name the sizes of its whole dims: kernels, windows, positions."""
    return "conv" in name or "pool" in name or name in FIXED


def small_sizes(dims: Dims, lowered: Lowered, mesh: Mesh) -> dict[int, int]:
    """The new size of each indivisible atom: a multiple of the axes that split it, never more than it was."""
    atoms = dims.atoms
    needs: dict[int, int] = {}
    for key, value in typed_values(lowered):
        for dim, axes in zip(dims.of[key], value.layout.dims, strict=True):
            flat = atoms.flat(dim.atoms)
            if axes and flat:
                ways = math.prod(mesh.size(axis) for axis in axes)
                needs[flat[0]] = math.lcm(needs.get(flat[0], 1), ways)
    sizes = {}
    for atom in range(len(atoms.sizes)):
        root = atoms.find(atom)
        if root == atom and atom not in atoms.parts and not atoms.is_frozen(atom):
            need = needs.get(atom, 1)
            small = need * max(2, -(-SMALLEST // need))
            sizes[atom] = small if small < atoms.sizes[atom] else atoms.sizes[atom]
    return sizes


def typed_values(lowered: Lowered) -> Iterable[tuple[Key, TypedValue]]:
    """Every value that the model itself has, with its layout; a moved one has no dims of its own."""
    yield from (((MODEL, v.name), v) for v in lowered.batch)
    yield from (((MODEL, s.value.name), s.value) for s in lowered.constants if not hasattr(s, "source"))
    for index, block in enumerate(lowered.blocks):
        entering = (*block.inputs, *block.externals, *block.parameters, *block.buffers)
        yield from (((index, v.name), v) for v in entering)
        yield from (((index, s.value.name), s.value) for s in block.body if not hasattr(s, "source"))


def shrink_model(model: Model, dims: Dims, sizes: dict[int, int]) -> Model:
    def typed(key: Key, kind: TensorType) -> TensorType:
        return TensorType(dims.shape(key, sizes), kind.dtype)

    def node_of(block: int, node: Node) -> Node:
        kind = typed((block, node.name), node.type)
        return replace(node, type=kind, args=small_arguments(node, kind))

    def values(block: int, given: Sequence[Typed]) -> tuple[Typed, ...]:
        return tuple(replace(v, type=typed((block, v.name), v.type)) for v in given)

    blocks = tuple(
        replace(
            block,
            inputs=values(i, block.inputs),
            externals=values(i, block.externals),
            parameters=values(i, block.parameters),
            buffers=values(i, block.buffers),
            nodes=tuple(node_of(i, node) for node in block.nodes),
        )
        for i, block in enumerate(model.blocks)
    )
    used = {name for segment in model.segments for name in segment.parameters}
    parameters = [replace(p, type=typed((MODEL, p.name), p.type)) for p in model.parameters if p.name in used]
    return replace(
        model,
        batch=values(MODEL, model.batch),
        parameters=tuple(renumbered(parameters)),
        buffers=tuple(replace(b, type=typed((MODEL, b.name), b.type)) for b in model.buffers),
        constants=tuple(node_of(MODEL, node) for node in model.constants),
        blocks=blocks,
    )


def small_arguments(node: Node, kind: TensorType) -> tuple[Argument, ...]:
    """The arguments that name sizes, at the new sizes."""
    name, args = node.op.split(".")[1], list(node.args)
    if name in ("reshape", "expand"):
        args[1] = kind.shape
    elif name in ("full", "zeros", "ones"):
        args[0] = kind.shape
    elif name in ("layer_norm", "rms_norm"):
        normalized = node.args[1]
        assert isinstance(normalized, tuple)
        args[1] = kind.shape[len(kind.shape) - len(normalized) :]
    elif name == "arange":
        start = int(str(args[0])) if len(args) > 1 else 0
        args[min(1, len(args) - 1)] = start + kind.shape[0]
    elif name == "slice":
        dim, start = int(str(args[1])), int(str(args[2]))
        args[3] = start + kind.shape[dim]
    return tuple(args)


def renumbered(parameters: Sequence[Parameter]) -> Iterable[Parameter]:
    """Pieces of a fused projection, each beginning where the one before it ends."""
    ends: dict[str, int] = {}
    for parameter in parameters:
        if parameter.dim < 0:
            yield restacked(parameter)
            continue
        start = ends.get(parameter.source, 0)
        stop = start + parameter.type.shape[parameter.dim]
        ends[parameter.source] = stop
        yield replace(parameter, start=start, stop=stop)


def shrink_depth(chosen: Chosen, model: Model) -> tuple[Chosen, Model]:
    """At most two pipeline ranks of at most two stages each, at most two segments of each run of a block in a stage,
    the boundary ones kept."""
    ends = min(LARGEST, chosen.parallelism.virtual_stages or 1)
    few = len(chosen.stages) <= LARGEST * ends
    stages = chosen.stages if few else (*chosen.stages[:ends], *chosen.stages[-ends:])
    segments: list[Segment] = []
    small: list[StageChoice] = []
    for stage in stages:
        first = len(segments)
        segments += thin(model.segments[stage.first : stage.last])
        again = sum(1 for s in segments[first:] if repeats(model, s))
        full = min(stage.recompute, max(1, again - 1))
        selective = min(stage.selective, max(1, again - 1 - full) if again > full else 0)
        small.append(StageChoice(first, len(segments), full, selective))
    parallelism = replace(chosen.parallelism, virtual_stages=ends)
    return replace(chosen, stages=tuple(small), parallelism=parallelism), replace(model, segments=tuple(segments))


def repeats(model: Model, segment: Segment) -> bool:
    return sum(s.block == segment.block for s in model.segments) > 1


def thin(segments: Sequence[Segment]) -> list[Segment]:
    kept: list[Segment] = []
    for segment in segments:
        if [s.block for s in kept[-SEGMENTS_OF_A_RUN:]] != [segment.block] * SEGMENTS_OF_A_RUN:
            kept.append(segment)
    return kept


