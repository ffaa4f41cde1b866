"""What one microbatch of one block costs, summed over what is emitted for it: operators, redistributions, bytes kept.

The operator problem and a finished plan are both priced here or by the same price list, so a plan's price is the sum
of what stands in its program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoplan.cost import Cost, Operator, Prices
from autoplan.cost.beside_tokens import beside_tokens
from autoplan.cost.chunk_seconds import Product, beside_products
from autoplan.cost.operators.kept_beside import sent_again
from autoplan.cost.operators.lookups import CachedTables
from autoplan.cost.operators.operator_seconds import lookups_of
from autoplan.cost.operators.token_exchange import NOTHING, in_chunks
from autoplan.cost.prices import layout_bytes
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block
from autoplan.ir.layout import I, Layout, R
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.chunks import chunks_of, products_beside
from autoplan.redistribution.hidden import hidden_hops
from autoplan.redistribution.shared_experts import in_order, overlapped
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.live import LiveBytes, live_of_walk, walk_through
from autoplan.search.block_cost.live_compiled import CompiledWalk
from autoplan.search.block_cost.live_forward import Located
from autoplan.search.block_cost.selective import SelectiveSaves, selective_of_values, selective_of_walk


@dataclass(frozen=True)
class MovedBytes:
    """One step of a redistribution, or a collective inside an operator, with its seconds and those hidden behind
    compute.

    again           its forward runs again in the backward of a segment that recomputes selectively
    second_s        of that run, whole where the first is in chunks; None: as the first
    hidden_again_s  of these
    """

    where: str
    step: Collective
    forward_s: float
    backward_s: float
    hidden_forward_s: float = 0.0
    hidden_backward_s: float = 0.0
    again: bool = False
    second_s: float | None = None
    hidden_again_s: float = 0.0

    @property
    def again_s(self) -> float:
        return self.forward_s if self.second_s is None else self.second_s


@dataclass(frozen=True)
class BlockCost:
    """One segment of a block in one microbatch, on one device.

    forward_s, backward_s   redistributions included
    weights_s        of backward_s, what gives parameters' gradients alone, so that other stages don't wait for it
    flops            of the matmuls, forward
    kept_bytes       kept from the forward for the backward
    selective        the same where it recomputes selectively, and what then runs again
    input_bytes, output_bytes   of the activations at its boundary, local
    constant_bytes   of the constants it reads
    working_bytes    what stands beside what is kept, for a moment
    parameter_bytes  local bytes of each parameter, in the block's order
    summed_axes      for each of these the operator axes over which its gradient is summed once a step; of one that
                     isn't trained those along which it is whole
    trained          which of these are trained
    live             what it holds while it runs, of which ``kept_bytes`` and ``working_bytes`` are the account
    parameter_shapes  local ones, in the block's order
    untouched        bytes of tables of which a step makes no gradient: rows that it doesn't look up
    cached           of tables that lie off the device
    """

    forward_s: float
    backward_s: float
    weights_s: float
    flops: float
    kept_bytes: int
    selective: SelectiveSaves
    input_bytes: int
    output_bytes: int
    constant_bytes: int
    working_bytes: int
    parameter_bytes: tuple[int, ...]
    summed_axes: tuple[tuple[str, ...], ...]
    trained: tuple[bool, ...]
    moves: tuple[MovedBytes, ...]
    live: LiveBytes = field(default_factory=LiveBytes)
    parameter_shapes: tuple[tuple[int, ...], ...] = ()
    untouched: float = 0.0
    cached: CachedTables = field(default_factory=CachedTables)

    @property
    def parameters(self) -> dict[tuple[str, ...], int]:
        """Local bytes of its trained parameters, by the operator axes over which their gradients are summed."""
        return self.by_axes(trained=True)

    @property
    def frozen(self) -> dict[tuple[str, ...], int]:
        """Those of the others, by the operator axes along which they are whole."""
        return self.by_axes(trained=False)

    def by_axes(self, trained: bool) -> dict[tuple[str, ...], int]:
        found: dict[tuple[str, ...], int] = {}
        for size, axes, mine in zip(self.parameter_bytes, self.summed_axes, self.trained, strict=True):
            if mine == trained:
                found[axes] = found.get(axes, 0) + size
        return found


def price_block(
    block: Block,
    choice: BlockChoice,
    operators: Mapping[str, Operator],
    prices: Prices,
) -> BlockCost:
    """Prices one block as it will be emitted."""
    mesh, types, carries = prices.mesh, block.types(), block.carries_gradient()
    operators, flights = in_chunks(operators, choice), overlapped(block, choice, mesh)
    block = in_order(block, flights)
    total = Cost()
    moves: list[MovedBytes] = []
    sent: list[tuple[int, tuple[str, Layout]]] = []  # moves whose forward may run again, with what then does
    alone_s: dict[str | Located, float] = {}
    weights_s, inputs_s = {}, {}
    for name, strategy in choice.strategies:
        beside = beside_tokens(flights[name], choice, operators, prices) if name in flights else NOTHING
        inside = prices.inside(operators[name], strategy, beside)
        cost = prices.operator(operators[name], strategy, inside)
        total += cost
        weights_s[name], inputs_s[name] = cost.weights_s, cost.backward_s - cost.weights_s
        again, made = sent_again(operators[name], strategy, mesh), strategy.output(len(types[name].shape), mesh)
        sent += [(len(moves) + place, (name, made)) for place, each in enumerate(inside) if each.step in again]
        moves += [MovedBytes(f"{block.name} {name}", **vars(each)) for each in inside]
        alone_s[name] = cost.forward_s - sum(each.open_forward_s for each in inside)
    under, cut = hidden_hops(block, choice, mesh), products_beside(block, choice, mesh)
    strategies = dict(choice.strategies)
    for number, hop in enumerate(choice.hops):
        found = prices.move(types[hop.value], hop.source, hop.target, hop.value in carries)
        assert found is not None, f"{hop.value} of {block.name} can't go from {hop.source} to {hop.target}"
        total += found[0]
        local_bytes = layout_bytes(types[hop.value], hop.target, mesh)
        for step in found[1]:
            cost = prices.step(step, hop.value in carries, local_bytes, types[hop.value])
            products = [node.name for node in under.get(number, ())]
            hidden_s = prices.under_products_s(cost.backward_s, sum(weights_s[name] for name in products))
            total += Cost(backward_s=-hidden_s)
            moved = MovedBytes(f"{block.name} {hop.value}", step, cost.forward_s, cost.backward_s, 0.0, hidden_s)
            if products and step.forward:  # gathered again while the products give the gradient of what is gathered
                hidden_s = prices.under_products_s(cost.forward_s, sum(inputs_s[name] for name in products))
                alone_s[hop.value, hop.target] = cost.forward_s - hidden_s
                moved = replace(moved, hidden_again_s=hidden_s)
            if number in cut and (chunks := chunks_of(hop)) > 1:
                pairs = [(operators[node.name], strategies[node.name]) for node in cut[number]]
                moved, more = cut_in_chunks(prices, replace(step, chunks=chunks), moved, pairs, hop.value in carries)
                total += more
            moves.append(moved)
            sent.append((len(moves) - 1, (hop.value, hop.target)))
    local = tuple(layout_bytes(types[name], layout, mesh) for name, layout in choice.parameters)
    trained = tuple(name not in block.frozen for name, _ in choice.parameters)
    summed = tuple(
        tuple(a for a in mesh.operator_axes if mesh.size(a) > 1 and layout.state(a) in ((R,) if mine else (R, I)))
        for (_, layout), mine in zip(choice.parameters, trained, strict=True)
    )
    entering = sum(layout_bytes(v.type, x, mesh) for v, x in zip(block.inputs, choice.inputs, strict=True))
    live, selective = live_of(block, choice, operators, prices, alone_s, total.forward_s, entering)
    for place, located in sent:
        moves[place] = replace(moves[place], again=located in selective.again)
    return BlockCost(
        total.forward_s,
        total.backward_s,
        total.weights_s,
        total.flops,
        live.kept,
        selective,
        entering,
        sum(layout_bytes(types[n], x, mesh) for n, x in zip(block.outputs, choice.outputs, strict=True)),
        sum(layout_bytes(types[n], x, mesh) for n, x in choice.externals),
        live.working,
        local,
        summed,
        trained,
        tuple(moves),
        live,
        tuple(layout.local_shape(types[name].shape, mesh) for name, layout in choice.parameters),
        sum(untouched_bytes(operators[name], strategy, prices) for name, strategy in choice.strategies),
        sum((cached_tables(operators[name], strategy, prices) for name, strategy in choice.strategies), CachedTables()),
    )


def untouched_bytes(operator: Operator, strategy: Strategy, prices: Prices) -> float:
    """As in ``BlockCost``."""
    if operator.rule.cost != "lookups" or not prices.training:
        return 0.0
    return lookups_of(operator, strategy, prices.mesh).untouched_bytes(prices.microbatches)


def cached_tables(operator: Operator, strategy: Strategy, prices: Prices) -> CachedTables:
    """As in ``BlockCost``."""
    looks_up = operator.rule.cost == "lookups"
    return lookups_of(operator, strategy, prices.mesh).cached_on(prices.device) if looks_up else CachedTables()


def cut_in_chunks(
    prices: Prices, step: Collective, moved: MovedBytes, products: Sequence[Product], carries: bool
) -> tuple[MovedBytes, Cost]:
    """A redistribution in chunks beside products, and what it takes more than whole."""
    cost = prices.step(step, carries)
    beside = beside_products(prices, step, cost, products)
    whole = Cost(moved.forward_s, moved.backward_s)
    found = replace(
        moved, step=step, forward_s=cost.forward_s, backward_s=cost.backward_s, second_s=moved.forward_s,
        hidden_forward_s=beside.hidden_forward_s,
        hidden_backward_s=moved.hidden_backward_s + beside.hidden_backward_s,
    )  # fmt: skip
    ahead_s, back_s = cost.forward_s - whole.forward_s, cost.backward_s - whole.backward_s
    return found, beside.cost + Cost(ahead_s, back_s)


def live_of(
    block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices,
    alone_s: Mapping[str | Located, float], forward_s: float, input_bytes: int,
) -> tuple[LiveBytes, SelectiveSaves]:  # fmt: skip
    """What a block holds while it runs, as it is and recomputed selectively: eager operator by operator, compiled
    kernel by kernel."""
    beside = (prices, alone_s, forward_s, input_bytes)
    if not prices.fuses:
        walk = walk_through(block, choice, operators, prices)
        live = live_of_walk(walk, prices.training)
        return live, selective_of_walk(walk, live, *beside) if prices.training else SelectiveSaves()
    compiled = CompiledWalk(block, choice, operators, prices)
    live = compiled.live()
    again = selective_of_values(compiled, block, choice, live, *beside) if prices.training else SelectiveSaves()
    return live, again
