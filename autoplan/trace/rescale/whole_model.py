"""``rescale``: the whole model, constants and chain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.errors import RescaleError
from autoplan.ir.graph import Block, Model, Node, TensorType, Typed, batch_rows
from autoplan.trace.rescale.dim_sizes import solve
from autoplan.trace.rescale.dims import REMEDY, Dims, Key
from autoplan.trace.rescale.reach import Bounds, bounds_of, lookups
from autoplan.trace.rescale.relate import Relations, reads_table, relate
from autoplan.trace.rescale.rewrite import rewritten

CONSTANTS = -1


def rescale(model: Model, batch: int | None = None, seq: int | None = None, *, compared: bool = False) -> Model:
    """The model as it would have been traced with so many rows in the batch and so many tokens in a row.

    batch  rows of one optimizer step; every batch input with as many rows as the batch has them
    seq    tokens in a row: dim 1 of the first batch input, and of every other that has as many there
    compared  the result is held against a trace, or was: numbers that may be a size needn't be refused

    Raises RescaleError, which names the value that can't follow, where the graph doesn't say what the sizes would be.
    """
    asked = {name: size for name, size in (("batch", batch), ("seq", seq)) if size is not None}
    for name, size in asked.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise RescaleError(f"{name}={size!r}", "a size is a whole number of at least 1", f"Give {name}>=1")
    was = {"batch": batch_rows(model), "seq": sequence(model) if seq is not None else 0}
    moves = {name: size for name, size in asked.items() if size != was[name]}
    if not moves:
        return model
    text = " ".join(f"{name}={size}" for name, size in moves.items())
    for name in moves:
        if was[name] == 1:
            cause = f"the model was traced with {name}=1, which can't be told from sizes that are always 1"
            raise RescaleError(text, cause, REMEDY)
    sizes = {name: asked.get(name, size) for name, size in was.items()}
    return _Rescaling(model, Dims(text), was, sizes, compared).run()


def sequence(model: Model) -> int:
    """Tokens in a row: dim 1 of the first batch input, of token ids or of vectors."""
    first = model.batch[0].type
    if len(first.shape) < 2 or (first.floating and len(first.shape) != 3):
        said = f"{model.batch[0].name} of shape {list(first.shape)} has no sequence of tokens"
        raise RescaleError("seq", said, "Leave seq out, or trace the model again with other inputs")
    return first.shape[1]


@dataclass
class _Rescaling:
    """One model on its way. was, sizes: batch and seq as traced and as asked for; compared: see ``rescale``."""

    model: Model
    dims: Dims
    was: Mapping[str, int]
    sizes: Mapping[str, int]
    compared: bool = False

    @property
    def moving(self) -> frozenset[int]:
        """Traced sizes that change."""
        changed = [n for n in self.was if self.was[n] != self.sizes[n]]
        product = self.was["batch"] * self.was["seq"]
        return frozenset({self.was[n] for n in changed} | ({product} if product else set()))

    def run(self) -> Model:
        relations = Relations(self.dims)
        self.enter()
        for scope, nodes, types, tables in self.scopes():
            for node in nodes:
                relate(relations, scope, node, types, reads_table(node, tables))
        self.link()
        self.seed()
        solve(self.dims, relations.equations, relations.made, self.moving)
        for key, why in relations.opaque:
            if self.dims.changed(key):
                raise self.dims.error(key, f"{why} computes a size from it that its rule doesn't tell")
        return self.rebuild()

    def enter(self) -> None:
        """Every value that isn't computed; parameters and buffers keep their sizes."""
        for given in self.model.batch:
            self.add(CONSTANTS, given.name, given.type)
        for buffer in self.model.buffers:
            self.add(CONSTANTS, buffer.name, buffer.type)
            self.fix(CONSTANTS, buffer.name, buffer.type)
        for index, block in enumerate(self.model.blocks):
            for value in (*block.inputs, *block.externals, *block.parameters, *block.buffers):
                self.add(index, value.name, value.type)
            for value in (*block.parameters, *block.buffers):
                self.fix(index, value.name, value.type)

    def add(self, scope: int, name: str, kind: TensorType) -> None:
        for dim, size in enumerate(kind.shape):
            self.dims.add((scope, name, dim), size)

    def fix(self, scope: int, name: str, kind: TensorType) -> None:
        for dim, size in enumerate(kind.shape):
            self.dims.give((scope, name, dim), size, f"{name} itself, which the model holds")

    def scopes(self) -> Iterator[tuple[int, Sequence[Node], dict[str, TensorType], set[str]]]:
        """(scope, nodes, types, names of tables) of the constants and of every block."""
        model = self.model
        rows = {v.name for v in model.batch}
        tables = {b.name for b in model.buffers}
        for node in model.constants:
            if not any(name in rows for name in node.operands):
                tables.add(node.name)
            else:
                rows.add(node.name)
        yield CONSTANTS, model.constants, model.types(), tables
        for index, block in enumerate(model.blocks):
            yield index, block.nodes, block.types(), {v.name for v in (*block.parameters, *block.buffers)}

    def link(self) -> None:
        """What leaves a segment enters the next; externals are constants, buffers or batch inputs."""
        given: list[Key] = []
        for segment in self.model.segments:
            index, block = segment.block, self.model.blocks[segment.block]
            for value, (scope, name, _) in zip(block.inputs, given, strict=True):
                self.same(index, value, scope, name)
            for value, name in zip(block.externals, segment.externals, strict=True):
                self.same(index, value, CONSTANTS, name)
            given = [(index, name, 0) for name in block.outputs]

    def same(self, index: int, value: Typed, scope: int, name: str) -> None:
        for dim in range(len(value.type.shape)):
            self.dims.unite((scope, name, dim), (index, value.name, dim))

    def seed(self) -> None:
        """The sizes that are asked for, where the batch has them."""
        rows, tokens = self.was["batch"], self.was["seq"]
        for value in self.model.batch:
            shape = value.type.shape
            if shape[:1] == (rows,):
                self.dims.give((CONSTANTS, value.name, 0), self.sizes["batch"], "the batch")
            if tokens and len(shape) > 1 and shape[1] == tokens:
                self.dims.give((CONSTANTS, value.name, 1), self.sizes["seq"], "the sequence")
            if not tokens and shape[:1] == (rows,):  # rows as long as they were, of which there are more or fewer
                for dim in (d for d in range(1, len(shape)) if shape[d] != rows):
                    self.dims.give((CONSTANTS, value.name, dim), shape[dim], f"{value.name}, but for its rows,")

    def rebuild(self) -> Model:
        model = self.model
        sizes = {scope: (nodes, types) for scope, nodes, types, _ in self.scopes()}
        known: dict[str, Bounds] = {}
        nodes, types = sizes[CONSTANTS]
        batch = tuple(self.typed(CONSTANTS, value) for value in model.batch)
        constants = self.nodes(CONSTANTS, nodes, types, batch, known)
        blocks = []
        for index, block in enumerate(model.blocks):
            reads = {
                value.name: known[name]
                for segment in model.segments if segment.block == index
                for value, name in zip(block.externals, segment.externals, strict=True) if name in known
            }  # fmt: skip
            blocks.append(self.block(index, block, reads))
        return replace(model, batch=batch, constants=constants, blocks=tuple(blocks))

    def block(self, index: int, block: Block, known: dict[str, Bounds]) -> Block:
        inputs = tuple(self.typed(index, value) for value in block.inputs)
        externals = tuple(self.typed(index, value) for value in block.externals)
        nodes = self.nodes(index, block.nodes, block.types(), (*inputs, *externals), known)
        return replace(block, inputs=inputs, externals=externals, nodes=nodes)

    def typed(self, scope: int, value: Typed) -> Typed:
        shape = tuple(self.dims.known((scope, value.name, dim)) for dim in range(len(value.type.shape)))
        return Typed(value.name, replace(value.type, shape=shape))

    def nodes(
        self, scope: int, nodes: Sequence[Node], types: Mapping[str, TensorType], entering: Sequence[Typed],
        known: dict[str, Bounds],
    ) -> tuple[Node, ...]:  # fmt: skip
        """The nodes at their new sizes; ``known`` takes the bounds of the values that are made of sizes."""
        after = dict(types) | {value.name: value.type for value in entering}
        found = []
        for node in nodes:
            refused = frozenset() if self.compared else self.moving
            new = rewritten(self.dims, scope, node, types, after, refused)
            after[new.name] = new.type
            found.append(new)
            bounds = bounds_of(new, known, after)
            if bounds is not None:
                known[new.name] = bounds
            self.check_reach(new, known, after)
        return tuple(found)

    def check_reach(self, node: Node, known: Mapping[str, Bounds], types: Mapping[str, TensorType]) -> None:
        for read in lookups(node, known):
            rows = types[read.table].shape[read.dim]
            if read.greatest >= rows:
                raise RescaleError(
                    self.dims.asked,
                    f"{read.table} has {rows} positions, and {node.name} reads {read.greatest + 1:.0f}",
                    f"Give a size of at most {rows}, or a model with a longer table",
                )
