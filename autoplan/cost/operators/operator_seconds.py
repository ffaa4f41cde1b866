"""One operator under one strategy: seconds forward and backward on one device.

A matmul's local sizes follow from its rule's factors: each split divides the factor it names. Everything else is
priced by the bytes it moves. Under ``compile``, memory-bound operators over the same elements run as one kernel, with
nothing written or read between them (``fusion``). In eager mode each operator pays for the kernels that it is made of
(``eager``), keeps what autograd keeps of it, and each takes no less than the framework's dispatch.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.eager import Moved, backward_bytes, calls_seconds, forward_bytes, kernels_of
from autoplan.cost.operators.experts import NO_LIMIT, Grouped, Groups, Travel, busiest, groups_of
from autoplan.cost.operators.fusion import GATHERING, Traffic, apart, fused
from autoplan.cost.operators.lookups import PLACED, by_rows, traffic_of
from autoplan.cost.operators.lookups import Traffic as TableTraffic
from autoplan.cost.operators.ring import Ring, attention, unfused
from autoplan.ir.graph import DTYPE_BYTES, Block, Node, TensorType
from autoplan.ir.layout import State
from autoplan.ir.mesh import Mesh
from autoplan.ir.randomness import ATTENTION, DROPOUT, drops, scores_in_memory
from autoplan.ops.experts.activation import counts
from autoplan.ops.experts.mixture import names_of
from autoplan.rules.kept_values import SIGN_BYTES, keeps_of, signs_of, value_of
from autoplan.rules.nn.expert_capacity import ROUTED, capacity_of, rows_sent
from autoplan.rules.registry import AxisStrategy, Rule, Term, factor_sizes, rule_of
from autoplan.rules.strategies import Strategy
from cost_models.compute import eager_seconds, matmul_flops, matmul_seconds, memory_bound_seconds
from cost_models.hardware import Device

RING = "ring_attention"  # a body


@dataclass(frozen=True)
class Operator:
    """A node with all that pricing asks about it, whatever its strategy.

    carries   for each operand, whether a gradient goes back to it
    weighs    for each operand, whether it is computed from parameters alone
    joins     for each operand, whether its gradient is added to that of an operator before, which uses it too
    reads     for each operand, whether it comes from memory rather than from the kernel it is fused into
    rereads   for each operand, whether the backward reads it again, for this operator or another
    writes    whether the result goes to memory
    kernel    the kernel that it is fused into, under the name of one of its operators
    keeps     what autograd keeps of it until the backward: operand positions, and "out" for the result
    beside    bytes that are kept besides for each element of the result
    terms     of each operand and, last, of the result, as the rule's notation gives them
    sizes     of the rule's factors over the whole tensors
    groups    of a mixture's experts, those to which its router limits a token's choices
    capacity  of a mixture's experts, as a multiple of an even share of the choices
    chunks    into how many a mixture's tokens are cut that travel to their experts (``BlockChoice.exchanges``)
    """

    node: Node
    rule: Rule
    operands: tuple[TensorType, ...]
    carries: tuple[bool, ...]
    weighs: tuple[bool, ...]
    joins: tuple[bool, ...]
    result_carries: bool
    reads: tuple[bool, ...]
    rereads: tuple[bool, ...]
    writes: bool
    kernel: str
    keeps: tuple[int | str, ...]
    beside: float
    terms: tuple[tuple[Term, ...], ...]
    sizes: Mapping[str, int]
    groups: Groups = NO_LIMIT
    capacity: float = math.inf
    chunks: int = 1


def operators_of(block: Block, *, fuses: bool) -> dict[str, Operator]:
    """Every node of a block by name; ``fuses`` where the program is compiled."""
    types, carries = block.types(), block.carries_gradient()
    rules = {node.name: rule_of(node, types) for node in block.nodes}
    rules = {name: rule.compiled() for name, rule in rules.items()} if fuses else rules
    traffic = fused(block, rules) if fuses else apart(block)
    weights, own = weights_of(block), frozenset(p.name for p in block.parameters)
    dropped = (weights if fuses else own) | {e.name for e in (*block.externals, *block.buffers)}
    joins, keeps = joins_of(block, carries), keeps_of(block, rules, carries, traffic.inside, dropped)
    signs = signs_of(block, keeps) if fuses else frozenset[str]()
    keeps |= {name: tuple(place for place in keeps[name] if place != "out") for name in signs}
    kept = {(traffic.kernels[n.name], value_of(n, place)) for n in block.nodes for place in keeps[n.name]}
    found = {
        node.name: operator_of(
            node, rules[node.name], types, carries, traffic, keeps[node.name], kept, weights, joins[node.name]
        )
        for node in block.nodes
    }
    found |= {name: replace(found[name], beside=found[name].beside + SIGN_BYTES) for name in signs}
    for node in block.nodes if fuses else ():
        found[node.name] = replace(found[node.name], beside=found[node.name].beside + repeated_bytes(node, types))
    mixtures = [node for node in block.nodes if rules[node.name].cost == "experts"]
    return found | {node.name: limited_mixture(found[node.name], block, node) for node in mixtures}


def limited_mixture(operator: Operator, block: Block, node: Node) -> Operator:
    """A mixture with what limits its tokens' choices."""
    return replace(operator, groups=groups_of(block, node), capacity=capacity_of(block, node) or math.inf)


def repeated_bytes(node: Node, types: Mapping[str, TensorType]) -> float:
    """For each element of an attention's result, bytes that repeated keys and values have beyond the shared ones:
    ``runtime.ops.attention.heads.grouped_query_attention`` repeats them on an accelerator that takes no groups."""
    shares = node.op == ATTENTION and dict(node.kwargs).get("enable_gqa")
    if not shares or (node.type.dtype != "float32" and len(node.operands) == 3):
        return 0.0
    _, k, v = (types[name] for name in node.operands[:3])
    return (node.type.shape[-3] / k.shape[-3] - 1) * (k.bytes + v.bytes) / node.type.elements


def joins_of(block: Block, carries: frozenset[str]) -> dict[str, tuple[bool, ...]]:
    """``Operator.joins`` of every node."""
    used: set[str] = set()
    joins = {}
    for node in block.nodes:
        places = []
        for name in node.operands:
            places.append(name in used and name in carries and node.name in carries)
            used |= {name} if node.name in carries else set()
        joins[node.name] = tuple(places)
    return joins


def operator_of(
    node: Node, rule: Rule, types: Mapping[str, TensorType], carries: frozenset[str], traffic: Traffic,
    keeps: tuple[int | str, ...], kept: Set[tuple[str, str]], weights: frozenset[str], joins: tuple[bool, ...],
) -> Operator:  # fmt: skip
    """One node; ``kept`` are kernels with what some operator of them keeps, ``weights`` what parameters
    alone give."""
    kernel = traffic.kernels[node.name]
    operands = tuple(types[name] for name in node.operands)
    return Operator(
        node=node,
        rule=rule,
        operands=operands,
        carries=tuple(name in carries for name in node.operands),
        weighs=tuple(name in weights for name in node.operands),
        joins=joins,
        result_carries=node.name in carries,
        reads=traffic.reads[node.name],
        rereads=tuple(i in rule.saved or (kernel, name) in kept for i, name in enumerate(node.operands)),
        writes=node.name not in traffic.inside,
        kernel=kernel,
        keeps=keeps,
        beside=rule.saved_bytes_per_element if node.name in carries else 0.0,
        terms=(*rule.operands, rule.result),
        sizes=factor_sizes(rule, operands, node.type),
    )


def weights_of(block: Block) -> frozenset[str]:
    """Parameters, and what is computed from parameters alone (a weight cast to another dtype). One that is spread over
    rows, as a sink that each query attends to, has more elements than it is made of: an activation."""
    weights, types = {p.name for p in block.parameters}, block.types()
    for node in block.nodes:
        made_of = sum(types[name].elements for name in node.operands)
        if node.type.elements <= made_of and all(name in weights for name in node.operands):
            weights.add(node.name)
    return frozenset(weights)


def price_operator(
    operator: Operator, strategy: Strategy, mesh: Mesh, device: Device, *, fuses: bool, training: bool
) -> Cost:
    """Seconds of one operator on its local tensors; no collective is in it."""
    kind = operator.rule.cost
    multiplies = operator.operands and operator.operands[0].dtype in device.peak_flops_per_s
    if kind == "matmul" and multiplies:
        cost = matmul_cost(operator, strategy, mesh, device)
    elif kind == "attention" and multiplies:
        cost = attention_cost(operator, strategy, mesh, device, fuses)
    elif kind == "experts" and multiplies:
        cost = experts_cost(operator, strategy, mesh, device)
    elif kind == "lookups":
        cost = lookups_cost(operator, strategy, mesh, device)
    else:
        cost = memory_cost(operator, strategy, mesh, device)
    goes_back = training and operator.result_carries
    share = weights_share(operator, cost)
    if not fuses:
        cost = eager_cost(operator, cost, strategy, mesh, device)
    backward_s = cost.backward_s if goes_back else 0.0
    return Cost(cost.forward_s, backward_s, cost.flops, share * backward_s)


def eager_cost(operator: Operator, cost: Cost, strategy: Strategy, mesh: Mesh, device: Device) -> Cost:
    """The seconds of ``cost`` in eager mode: of a product what calls around it take besides, of any other operator in
    the table the calls that it consists of.

    Backward also: a gradient that joins another of the same value is added to it in place (two read, one written), and
    a parameter's goes through one more step of autograd's.
    """
    forward_s, backward_s = (float(eager_seconds(seconds, device)) for seconds in (cost.forward_s, cost.backward_s))
    parts, result = moved_bytes(operator, strategy, mesh)
    moved, kernels = Moved(parts, result, operator.carries), kernels_of(operator.node.op, device)
    if kernels:
        ahead_s, back_s = (calls_seconds(calls(kernels, moved), device) for calls in (forward_bytes, backward_bytes))
        products = operator.rule.cost in ("matmul", "attention", "experts")
        forward_s, backward_s = (forward_s + ahead_s, backward_s + back_s) if products else (ahead_s, back_s)
    added = [3.0 * part for part, joins in zip(parts, operator.joins, strict=True) if joins]
    stored = [0.0 for weighs, carries in zip(operator.weighs, operator.carries, strict=True) if weighs and carries]
    return Cost(forward_s, backward_s + calls_seconds([*added, *stored], device), cost.flops)


def weights_share(operator: Operator, cost: Cost) -> float:
    """The share of an operator's backward that gives parameters' gradients alone: a product for each of its operands,
    all of it where no other operand has a gradient (an embedding), else nothing: one kernel gives both (a norm)."""
    back = [weighs for weighs, carries in zip(operator.weighs, operator.carries, strict=True) if carries]
    if back and all(back):
        return 1.0
    return cost.weights_s / cost.backward_s if cost.backward_s > 0 else 0.0


def local_factors(operator: Operator, strategy: Strategy, mesh: Mesh) -> dict[str, int]:
    """The size of each factor on one rank."""
    sizes = dict(operator.sizes)
    for axis, chosen in strategy.axes:
        factor = split_factor_of(operator, chosen)
        if factor:
            sizes[factor] = max(1, sizes[factor] // mesh.size(axis))
    return sizes


def split_factor_of(operator: Operator, chosen: AxisStrategy) -> str:
    """The factor that a strategy splits; read off the states where it doesn't name one (a body's own way)."""
    if chosen.factor in operator.sizes:
        return chosen.factor
    for terms, state in zip(operator.terms, (*chosen.inputs, chosen.output), strict=True):
        if state.kind == "S" and state.dim < len(terms) and terms[state.dim]:
            return terms[state.dim][0]
    return ""


def matmul_extents(operator: Operator, sizes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """(m, n, k, batch): factors of the first operand and the result, of the second and the result, of neither result,
    of all three. The rows are those of the first operand where it has fewer: a convolution multiplies once for each
    place of its result, a transposed one once for each place of its operand."""
    places = (operator.terms[0], operator.terms[1], operator.terms[-1])
    one, other, result = ({f for term in terms for f in term} for terms in places)
    m = min(math.prod(sizes[f] for f in rows - other) for rows in (result, one))
    n = math.prod(sizes[f] for f in (result & other) - one)
    k = math.prod(sizes[f] for f in other - result)
    return m, n, k, math.prod(sizes[f] for f in one & other & result)


def matmul_cost(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> Cost:
    """One matmul forward; backward one for each operand that a gradient goes back to: [m, n] @ [n, k] for the first,
    [k, m] @ [m, n] for the second, so that few rows make the second's products short."""
    m, n, k, batch = matmul_extents(operator, local_factors(operator, strategy, mesh))
    dtype = operator.operands[0].dtype
    forward_s = float(matmul_seconds(m, n, k, batch, dtype, device))
    first, second = operator.carries[:2]
    first_s = float(matmul_seconds(m, k, n, batch, dtype, device)) if first else 0.0
    second_s = float(matmul_seconds(k, n, m, batch, dtype, device)) if second else 0.0
    weights_s = first_s * operator.weighs[0] + second_s * operator.weighs[1]
    return Cost(forward_s, first_s + second_s, float(matmul_flops(m, n, k, batch)), weights_s)


def attention_cost(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device, fuses: bool) -> Cost:
    """An attention over the local heads and rows, fused unless it drops where no kernel does. Of causal rows on several
    ranks the last rank's, which see all keys, set the pace."""
    ring = ring_of(operator, strategy, mesh, fuses)
    if ring is not None:
        return ring.compute(device)
    q, k = (local_shape(operator.operands[i], [(a, s.inputs[i]) for a, s in strategy.axes], mesh) for i in (0, 1))
    q, k = [1] * (3 - len(q)) + q, [1] * (3 - len(k)) + k
    extents = (math.prod(q[:-3]), q[-3], q[-2], k[-2], q[-1], is_causal(operator.node))
    dtype = operator.operands[0].dtype
    if scores_in_memory(operator.node) or (drops(operator.node) and device.composes):
        return unfused(extents, dtype, device)
    return attention(extents, dtype, device)


def ring_of(operator: Operator, strategy: Strategy, mesh: Mesh, fuses: bool) -> Ring | None:
    """The ring round which keys and values go under a strategy; None where they don't."""
    ways = math.prod(mesh.size(axis) for axis, s in strategy.axes if s.body == RING)
    if ways == 1:
        return None
    states = [[(axis, s.inputs[i]) for axis, s in strategy.axes] for i in range(3)]
    q, k, v = (local_shape(operator.operands[i], states[i], mesh) for i in range(3))
    q, k, v = ([1] * (3 - len(x)) + x for x in (q, k, v))
    causal, dtype = is_causal(operator.node), operator.operands[0].dtype
    return Ring(
        batch=math.prod(q[:-3]), heads=q[-3], kv=k[-3], rows=q[-2], keys=k[-2], head_dim=q[-1], value_dim=v[-1],
        ways=ways, is_causal=causal, balanced=causal and q[-2] % 2 == 0, dtype=dtype, itemsize=DTYPE_BYTES[dtype],
        fuses=fuses,
    )  # fmt: skip


def experts_cost(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> Cost:
    """A mixture's experts over the tokens that reach the busiest rank."""
    (grouped, travel), dtype = grouped_of(operator, strategy, mesh), operator.operands[0].dtype
    forward_s, backward_s = grouped.forward_s(dtype, device), grouped.backward_s(dtype, device)
    ways_s = (0.0, 0.0) if travel is None else (travel.forward_s(device), travel.backward_s(device))
    return Cost(forward_s + ways_s[0], backward_s + ways_s[1], grouped.flops)


def grouped_of(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[Grouped, Travel | None]:
    """A mixture's experts on the busiest rank, and the way there; hidden [.., h], indices [.., k], first weights
    [e, f, h] each."""
    local, travel = local_factors(operator, strategy, mesh), travel_of(operator, strategy, mesh)
    (out,), tokens, here = operator.terms[-1][-1], tokens_of(operator, local), local["e"]
    if travel is not None:
        tokens, here = tokens * travel.ways, here // travel.ways
    ranks = operator.sizes["e"] // here
    mean = tokens * local["k"] / ranks
    chosen = min(tokens * local["k"], busiest(mean, ranks), mean * operator.capacity)
    chosen = travel.rows if travel is not None and travel.sent else chosen  # those without a choice, too
    first = operator.node.args[3]
    assert isinstance(first, tuple)
    products, activation = len(first) * local.get("pair", 1), counts(str(operator.node.args[6]), names_of(first))
    widths = local["h"], local["f" if first else "h"], local[out]
    found = Grouped.of(chosen, here, *widths, products, activation)
    return found.of_tokens(tokens, local["k"], DTYPE_BYTES[operator.operands[2].dtype], travel), travel


def tokens_of(operator: Operator, local: Mapping[str, int]) -> int:
    """How many tokens a mixture's experts have, given the factors' local sizes."""
    return math.prod(local[f] for term in operator.terms[-1][:-1] for f in term)


def travel_of(operator: Operator, strategy: Strategy, mesh: Mesh) -> Travel | None:
    """How a mixture's tokens travel to their experts under a strategy; None where they don't."""
    ways = math.prod(mesh.size(axis) for axis, s in strategy.axes if s.body == ROUTED)
    if ways == 1:
        return None
    local, hidden, scores = local_factors(operator, strategy, mesh), operator.operands[0], operator.operands[2]
    (out,) = operator.terms[-1][-1]
    *rows, tokens, _ = local_shape(hidden, [(axis, s.inputs[0]) for axis, s in strategy.axes], mesh)
    limits = math.prod(rows), tokens, local["k"], operator.sizes["e"] // ways, ways, operator.capacity
    sent = rows_sent(*limits) if operator.capacity < math.inf and tokens == hidden.shape[-2] else 0
    return Travel(
        tokens_of(operator, local), ways, operator.sizes["e"], local["k"], local["h"], local[out],
        DTYPE_BYTES[hidden.dtype], DTYPE_BYTES[scores.dtype], operator.groups, operator.capacity, sent,
        math.gcd(operator.chunks, limits[0]) if sent else operator.chunks,
    )  # fmt: skip


def lookups_cost(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> Cost:
    """Look-ups in tables that lie together; their gradients fill the tables' own size, or looked-up rows'."""
    found = lookups_of(operator, strategy, mesh)
    own_bytes = operator.operands[0].bytes / found.ways
    return Cost(found.forward_s(device), found.backward_s(device, own_bytes))


def lookups_of(operator: Operator, strategy: Strategy, mesh: Mesh) -> TableTraffic:
    """What look-ups in placed tables move under a strategy: one rank's rows of one microbatch."""
    ways = math.prod(mesh.size(axis) for axis, s in strategy.axes if s.body == PLACED)
    rows = local_shape(operator.node.type, [(a, s.output) for a, s in strategy.axes], mesh)[0]
    return traffic_of(operator.node, operator.operands[0], ways, rows, by_rows(operator.node, strategy, mesh))


def is_causal(node: Node) -> bool:
    """The flag of scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)."""
    return bool(dict(node.kwargs).get("is_causal", node.args[5] if len(node.args) > 5 else False))


def memory_cost(operator: Operator, strategy: Strategy, mesh: Mesh, device: Device) -> Cost:
    """Bytes that come from memory and go there. Backward: the result's gradient is read, each operand's written, and
    what the forward kept is read again."""
    if operator.rule.cost == "free":
        return Cost()
    parts, result = moved_bytes(operator, strategy, mesh)
    full_gradient = parts[0] if operator.node.op in GATHERING else 0
    if operator.node.op in GATHERING:
        parts[0] = min(parts[0], result)
    moved = sum(p for p, read in zip(parts, operator.reads, strict=True) if read) + result * operator.writes
    back = result * (operator.writes + ("out" in operator.keeps)) + full_gradient
    if operator.node.op == DROPOUT:  # its mask, where there is one
        mask = int(operator.beside) * result // DTYPE_BYTES[operator.node.type.dtype]
        moved, back = moved + mask, back + mask
    for i, (part, read, carries) in enumerate(zip(parts, operator.reads, operator.carries, strict=True)):
        if read:
            back += part * carries + part * operator.rereads[i]
    return Cost(float(memory_bound_seconds(moved, device)), float(memory_bound_seconds(back, device)))


def moved_bytes(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[list[int], int]:
    """Bytes of each operand and of the result, on one rank."""
    states = [[(axis, s.inputs[i]) for axis, s in strategy.axes] for i in range(len(operator.operands))]
    parts = [local_bytes(t, s, mesh) for t, s in zip(operator.operands, states, strict=True)]
    return parts, local_bytes(operator.node.type, [(axis, s.output) for axis, s in strategy.axes], mesh)


def local_shape(kind: TensorType, states: list[tuple[str, State]], mesh: Mesh) -> list[int]:
    shape = list(kind.shape)
    for axis, state in states:
        if state.kind == "S":
            shape[state.dim] //= mesh.size(axis)
    return shape


def local_bytes(kind: TensorType, states: list[tuple[str, State]], mesh: Mesh) -> int:
    return math.prod(local_shape(kind, states, mesh)) * (kind.bytes // max(kind.elements, 1))
