"""Emission: each operator's spelling computes what the operator does; the program is Python that a person can read."""

from __future__ import annotations

import ast
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from autoplan.emit.program_text import emit_program
from autoplan.emit.source import attribute_names, commented, identifier, literal, placement, size_text, snake_case
from autoplan.emit.spelling import spell
from autoplan.ir.graph import DType, Ref
from autoplan.ir.layout import I, Layout, P, R, S
from autoplan.ir.mesh import Mesh
from autoplan.ir.randomness import is_random
from autoplan.ir.typed_program import Compute
from autoplan.lower.after_search import program_of
from autoplan.lower.lowering import lower
from autoplan.options import Training
from autoplan.runtime import ops
from autoplan.verify.single import on_one_device
from tests.support.hand_made import llama, mlp
from tests.support.records import record_of
from tests.support.rule_samples import samples
from tests.support.simulate import Case, copies

SPELLED = [s for s in samples() if s.op not in ("autoplan.dropout", "autoplan.uniform", "autoplan.batch_norm")]


@pytest.mark.parametrize("sample", SPELLED, ids=str)
def test_every_spelling_computes_the_operator(sample):
    case = Case.of(sample)
    values = {f"t{i}": t.detach() for i, t in enumerate(copies(case.tensors))}
    args = [literal(a, lambda name: name) for a in case.node.args]
    kwargs = {k: literal(v, lambda name: name) for k, v in case.node.kwargs}
    source = spell(case.node.op, args, kwargs, values["t0"].ndim if values else 0)
    scope = {**values, **vars(ops), "torch": torch, "F": functional, "device": torch.device("cpu")}
    torch.testing.assert_close(eval(source, scope), case.result.detach(), rtol=1e-12, atol=1e-12, equal_nan=True)


@given(st.text(min_size=1))
def test_an_identifier_is_one(text):
    assert identifier(text).isidentifier()


def test_attribute_names_are_short_and_distinct():
    names = ("self_attn.q_proj.weight", "mlp.up.weight", "c_attn.weight[:, 0:768]", "c_attn.weight[:, 768:1536]")
    assert attribute_names(names) == {
        "self_attn.q_proj.weight": "q_proj_weight",
        "mlp.up.weight": "up_weight",
        "c_attn.weight[:, 0:768]": "c_attn_weight_0_768",
        "c_attn.weight[:, 768:1536]": "c_attn_weight_768_1536",
    }
    assert len(set(attribute_names(("a.x.w", "b.x.w", "x.w")).values())) == 3
    assert attribute_names(("weight",)) == {"weight": "weight"}


def test_literals():
    written = literal((Ref("x"), DType("float32"), (1,), -math.inf, None, "tanh"), lambda name: f"self.{name}")
    assert written == '(self.x, torch.float32, (1,), float("-inf"), None, \'tanh\')'


def test_comments_use_pytorchs_names_and_leave_out_what_says_nothing():
    mesh = Mesh.of(dp=2, tp=4, mb=3)
    layout = Layout.of(3, {"dp": S(0), "tp": P, "mb": S(0)}, mesh)
    assert placement(layout, frozenset(("dp", "tp"))) == "dp: Shard(0), tp: Partial"
    assert placement(layout, frozenset(("tp",))) == "tp: Partial"
    assert placement(Layout.of(1, {"dp": R, "tp": I}, mesh), frozenset(("dp", "tp"))) == "tp: Invariant"
    assert placement(Layout.of(1, {"dp": R, "tp": P}, mesh), frozenset(("dp",))) == ""


def test_small_pieces():
    assert snake_case("LlamaDecoderLayer") == "llama_decoder_layer"
    assert snake_case("GPT2Block") == "gpt2_block"
    assert [size_text(n) for n in (512, 2048, 134217728, 3 << 30)] == ["512 B", "2 KiB", "128 MiB", "3 GiB"]
    assert commented("x = 1", "", 4) == "    x = 1"


@pytest.fixture(scope="module")
def program() -> str:
    record = record_of(llama(), "1x4 cpu", dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="gpipe")
    return emit_program(lower(record.model, record.chosen), "tp=2 pp=2")


def test_the_program_is_python_and_imports_what_it_calls(program):
    tree = ast.parse(program)
    imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    defined |= {"super", "range", "layer", "parameters"}
    assert called <= imported | defined
    assert {"all_reduce", "column_linear"} <= imported & called


def test_one_class_for_each_distinct_block(program):
    classes = [n.name for n in ast.parse(program).body if isinstance(n, ast.ClassDef)]
    assert sorted(classes) == ["Embed", "Head", "Layer", "Stage0", "Stage1"]
    assert program.count("nn.ModuleList(") == 2


def test_shapes_in_comments_are_one_ranks(program):
    line = next(line for line in program.splitlines() if "self.q_weight = " in line)
    assert line.endswith("# [64, 64] -> [32, 64]   tp: Shard(0)")
    assert "backward: all-reduce" in program and "forward: all-reduce" in program


def test_lines_are_the_same_every_time(program):
    record = record_of(llama(), "1x4 cpu", dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="gpipe")
    assert emit_program(lower(record.model, record.chosen), "tp=2 pp=2") == program


def test_mixed_precision_reads_parameters_as_they_are_held():
    record = record_of(llama(dtype="bfloat16"), "1x1 cpu", Training(precision="bf16-mixed"))
    source = emit_program(program_of(on_one_device(record)), "one device")
    assert "self.q_weight" in source and "bfloat16" not in source


def test_recomputed_segments_are_checkpointed():
    record = record_of(llama(), "1x2 cpu", dp=1, tp=1, pp=2, micro_batch=2, recompute="full")
    source = emit_program(program_of(record), "pp=2")
    assert "x = checkpoint(layer, x, use_reentrant=False)" in source


def test_selective_segments_are_named_after_the_layers_they_are():
    """Of four layers the first in full, two selectively, the last kept; then all selectively."""
    record = record_of(llama(layers=4), "1x2 cpu", dp=1, tp=2, pp=1)
    stages = (replace(record.chosen.stages[0], recompute=1, selective=2),)
    source = emit_program(lower(record.model, replace(record.chosen, stages=stages)), "mixed")
    assert "recompute_selectively(self.layer[1:3])" in source
    assert "from autoplan.runtime.memory.selective import recompute_selectively" in source
    assert "if i < 1:  # activations recomputed in the backward" in source
    stages = (replace(stages[0], recompute=0, selective=4),)
    source = emit_program(lower(record.model, replace(record.chosen, stages=stages)), "selective")
    assert "recompute_selectively(self.layer)" in source and "checkpoint(" not in source


def test_a_bias_is_written_with_its_product():
    source = emit_program(program_of(on_one_device(record_of(mlp(), "1x1 cpu"))), "one device")
    assert "F.linear(x, self.up_weight, self.up_bias)" in source


def test_a_bias_after_a_reduction_is_added_after_it():
    """Row-parallel: the product is partial, the bias is added once."""
    record = record_of(mlp(), "1x2 cpu", dp=1, tp=2, pp=1)
    up = next(s for s in program_of(record).blocks[1].body if isinstance(s, Compute) and s.value.name == "up_bias")
    assert not is_random(up)
    assert up.value.layout.state("tp").kind != "P"
