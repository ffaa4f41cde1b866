"""Experts that take a limited number of tokens (``Training.expert_capacity``): which choices a mixture leaves out.

Each row of the batch is a group of tokens, as GShard has them (Lepikhin et al. 2021, arXiv 2006.16668, section 3.2).
Of a group's s·k choices each of E experts takes capacity·s·k/E at most, rounded up. So what is dropped follows from the
row alone: it is the same under every split of the batch, and on one device.

    order  first choices before second ones, each in the order of the tokens (Switch: Fedus et al. 2021, 2101.03961)
    score  the greatest score first (batch prioritized routing: Riquelme et al. 2021, 2106.05974)

Experts on other ranks then get a number of rows that is known beforehand, where a rank has its rows of the batch whole:
the all-to-all is of that size, as GShard's is, and no counts are exchanged for it (``rows_sent``).
"""

import math
from dataclasses import replace

from autoplan.errors import ParallelismError
from autoplan.ir.graph import Block, Model, Node, Ref
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy

MIXTURE, WITHIN, ROUTED = "autoplan.experts", "autoplan.within_capacity", "routed_experts"
TOP, RESHAPE = "autoplan.top_indices", "aten.reshape.default"
COMPLETE = 8  # which argument of a mixture says that every choice names an expert


def with_capacity(model: Model, capacity: float | None, dropping: str) -> Model:
    """The model whose mixtures leave out the choices beyond a capacity; None: none.

    ParallelismError where it has no mixture, one whose tokens aren't of rows of the batch, or one that computes a
    token's choices apart.
    """
    if capacity is None:
        return model
    if not any(node.op == MIXTURE for block in model.blocks for node in block.nodes):
        cause = "the model has no mixture of experts that autoplan's operator computes"
        raise ParallelismError(f"expert_capacity={capacity:g}", cause, "leave it out")
    blocks = (limited(block, capacity, dropping == "score") for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


def limited(block: Block, capacity: float, by_score: bool) -> Block:
    types, nodes, taken = block.types(), [], set(block.types())
    for node in block.nodes:
        if node.op == MIXTURE:
            kind = types[node.operands[1]]
            if len(kind.shape) < 3:
                cause = f"it counts tokens by rows of the batch, and those of {node.module or block.name} have none"
                remedy = "give its tokens as [batch, tokens, width]"
                raise ParallelismError(f"expert_capacity={capacity:g}", cause, remedy)
            if not node.args[3]:
                cause = f"the experts of {node.module or block.name} compute each of a token's choices by itself"
                raise ParallelismError(f"expert_capacity={capacity:g}", cause, "leave it out")
            if by_score and node.operands[2] in {external.name for external in block.externals}:
                cause = f"the experts of {node.module or block.name} get tokens that scores multiplied, and no scores"
                raise ParallelismError("expert_dropping='score'", cause, "leave it out: the first of a row are kept")
            name = next(n for i in range(len(taken) + 1) if (n := f"kept_choices{i or ''}") not in taken)
            taken.add(name)
            index, scores, experts = node.args[1], node.args[2], types[node.operands[3]].shape[0]
            nodes.append(Node(name, WITHIN, (index, scores, experts, capacity, by_score), (), kind, node.module))
            args = list(node.args)
            args[1], args[COMPLETE] = Ref(name), False
            node = replace(node, args=tuple(args))
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def taken(tokens: int, choices: int, experts: int, capacity: float) -> int:
    """Of a row's choices, what one expert takes at most."""
    return math.ceil(capacity * tokens * choices / experts)


def drops_nothing(block: Block, mixture: Node) -> bool:
    """Whether a mixture was limited, and no choice of experts can exceed the limit."""
    capacity = capacity_of(block, mixture)
    if capacity is None:
        return False
    types, makers = block.types(), {node.name: node for node in block.nodes}
    tokens, choices = types[mixture.operands[1]].shape[-2:]
    most, named = taken(tokens, choices, types[mixture.operands[3]].shape[0], capacity), mixture.operands[1]
    while named in makers and makers[named].op in (WITHIN, RESHAPE):
        named = makers[named].operands[0]
    top = makers.get(named)  # of which a token chooses an expert once at most
    distinct = top is not None and top.op == TOP and top.args[1] == choices
    return most >= tokens * (1 if distinct else choices)


def rows_sent(groups: int, tokens: int, choices: int, here: int, ways: int, capacity: float) -> int:
    """Rows of tokens that a rank sends to each of ``ways`` ranks, of ``here`` experts each, where that is known.

    groups, tokens  its rows of the batch, and the tokens of each
    0 where all of its tokens might go: then those that do are counted.
    """
    most = here * taken(tokens, choices, here * ways, capacity)
    return groups * most if most < tokens else 0


def limit_of_rows(block: Block, mixture: Node, strategy: Strategy, mesh: Mesh) -> float | None:
    """The capacity by which ``rows_sent`` is known under a strategy; None where tokens don't travel, there is none, or
    ranks have parts of a row's tokens."""
    capacity = capacity_of(block, mixture) if mixture.op == MIXTURE else None
    if capacity is None or not any(way.body == ROUTED for _, way in strategy.axes):
        return None
    shape = block.types()[mixture.operands[0]].shape
    return capacity if strategy.input(0, len(shape), mesh).local_shape(shape, mesh)[-2] == shape[-2] else None


def travels(strategy: Strategy, mesh: Mesh) -> bool:
    """Whether a mixture's tokens go to experts on other ranks."""
    return any(way.body == ROUTED and mesh.size(axis) > 1 for axis, way in strategy.axes)


def capacity_of(block: Block, mixture: Node) -> float | None:
    """The capacity that a mixture's choices were limited to; None without any."""
    made = next((node for node in block.nodes if node.name == mixture.operands[1]), None)
    found = made.args[3] if made is not None and made.op == WITHIN else None
    assert found is None or isinstance(found, (int, float))
    return found
