"""Which products run as one, and which of their results are copied out of it."""

from __future__ import annotations

from dataclasses import replace

from autoplan.emit.program_text import emit_program
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Model, Node, Ref, map_refs
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import JoinedProducts, Lowered, LoweredBlock
from autoplan.lower.after_search import program_of
from autoplan.lower.lowering import lower
from tests.support.hand_made import llama, node
from tests.support.records import record_of

GATES = JoinedProducts(("gate", "up"))


def turned(model: Model) -> Model:
    """Attention reads what an operator makes of queries and keys, of which it keeps nothing, as rotation."""
    layer = model.blocks[1]
    renamed = {"qt": "q_turned", "kt": "k_turned"}

    def reading(given: Node) -> Node:
        args = tuple(map_refs(a, lambda ref: Ref(renamed.get(ref.name, ref.name))) for a in given.args)
        return replace(given, args=args) if given.name == "attn" else given

    nodes: list[Node] = []
    for each in layer.nodes:
        nodes.append(reading(each))
        if each.name in renamed:
            nodes.append(node(renamed[each.name], "aten.neg.default", each.type, f"%{each.name}"))
    blocks = (model.blocks[0], replace(layer, nodes=tuple(nodes)), *model.blocks[2:])
    return replace(model, blocks=blocks)


def record(model: Model, **pinned: object) -> PlanRecord:
    return record_of(model, "1x4 cpu", **{"dp": 1, "tp": 4, "pp": 1, **pinned})  # type: ignore[arg-type]


def layer(lowered: Lowered) -> LoweredBlock:
    return lowered.blocks[1]


def pieces(model: Model) -> Model:
    """Queries, keys and values are pieces of one projection."""
    layer = model.blocks[1]
    renamed = {"q.weight": "qkv.weight[0:64]", "k.weight": "qkv.weight[64:96]", "v.weight": "qkv.weight[96:128]"}
    nodes = tuple(
        replace(n, args=tuple(map_refs(a, lambda ref: Ref(renamed.get(ref.name, ref.name))) for a in n.args))
        for n in layer.nodes
    )
    parameters = tuple(replace(p, name=renamed.get(p.name, p.name)) for p in layer.parameters)
    blocks = (model.blocks[0], replace(layer, nodes=nodes, parameters=parameters), *model.blocks[2:])
    return replace(model, blocks=blocks)


def test_queries_keys_and_values_are_one_product_and_gate_and_up_another() -> None:
    for pinned in ({}, {"sequence_parallel": True}):
        assert layer(program_of(record(llama(), **pinned))).joined == (JoinedProducts(("q", "k", "v")), GATES)


def test_whole_weights_stay_apart_unless_they_are_pieces_of_one() -> None:
    assert not layer(program_of(record(llama(), dp=4, tp=1, zero=0))).joined
    assert layer(program_of(record(pieces(llama()), dp=4, tp=1, zero=0))).joined == (JoinedProducts(("q", "k", "v")),)


def test_values_are_copied_where_queries_and_keys_are_not_read_again() -> None:
    """Else the backward would keep all three for them; of gate and up it reads both."""
    found = record(turned(llama()))
    assert layer(program_of(found)).joined == (JoinedProducts(("q", "k", "v"), (2,)), GATES)


def test_what_is_computed_again_keeps_what_it_reads() -> None:
    found = record(turned(llama()))
    again = tuple((name, dict(found.chosen.blocks[1].strategies)[name].output(4, tensor_mesh(found.chosen.mesh)))
                  for name in ("q_turned", "k_turned"))  # fmt: skip
    blocks = (found.chosen.blocks[0], replace(found.chosen.blocks[1], again=again), *found.chosen.blocks[2:])
    stages = tuple(replace(stage, recompute=0, selective=1) for stage in found.chosen.stages)
    selective = lower(found.model, replace(found.chosen, stages=stages, blocks=blocks))
    assert layer(selective).joined == (JoinedProducts(("q", "k", "v")), GATES)


def test_a_split_backward_takes_the_gradients_of_each_product_apart() -> None:
    found = record(llama(), pp=2, tp=2, pipeline_schedule="zero-bubble", micro_batch=2)
    assert not any(block.joined for block in program_of(found).blocks)


def test_the_program_says_what_lies_side_by_side_and_what_one_call_gives() -> None:
    source = emit_program(program_of(record(turned(llama()))), "a plan")
    assert 'parameters.side_by_side("q.weight", "k.weight", "v.weight")' in source
    assert 'parameters.side_by_side("gate.weight", "up.weight")' in source
    assert "q, k, v = column_linear(" in source and "apart=(2,))" in source
    assert "gate, up = column_linear(" in source
    assert source.index("side_by_side(") < source.index('parameters("q.weight")')


def test_products_without_a_sum_over_ranks_are_one_call_too() -> None:
    source = emit_program(program_of(record(pieces(llama()), dp=4, tp=1, zero=0)), "a plan")
    assert 'parameters.side_by_side("qkv.weight[0:64]", "qkv.weight[64:96]", "qkv.weight[96:128]")' in source
    assert "q, k, v = joined_linear(n1, (" in source
    assert "gate = F.linear(" in source
