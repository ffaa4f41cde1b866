"""Context, experts and tensor axes together, with sharding and pipelines: equal to one device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from autoplan import forbid
from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.ir.layout import S
from autoplan.ir.typed_program import Compute
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.search.entry import search
from autoplan.search.space.systems import resolve
from autoplan.verify.compare import gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.bench.architectures.catalog import ARCHITECTURES
from tests.bench.architectures.under_torchrun import gradients_of_folders
from tests.support import zoo
from tests.support.hand_made import llama, mlp
from tests.support.mixtures import BY_LAYERS as WITH_EXPERTS
from tests.support.mixtures import deepseek_v3, gpt_oss, tokens
from tests.support.planning import alone, parallelize_alone
from tests.support.sampling import slow
from tests.support.tolerances import FLOAT32

Batch = dict[str, torch.Tensor]
EQUAL, STEPS = 1e-10, 2
MIXTURES = {"qwen3_moe": partial(WITH_EXPERTS["qwen3"], 2), "gpt_oss": gpt_oss, "deepseek_v3": deepseek_v3}
SLOW = pytest.mark.slow
FOUR = [
    slow(("llama", {"cp": 2, "tp": 2, "cp_attention": "rows"})),
    slow(("llama", {"cp": 2, "tp": 2, "cp_attention": "ring"})),
    slow(("gpt2", {"cp": 2, "dp": 2, "cp_attention": "heads", "zero": 3})),
    slow(("mixtral", {"dp": 2, "tp": 2, "ep": 2, "etp": 2})),
    slow(("mixtral", {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero": 1})),
    ("mixtral", {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "travel": "ep"}),
    slow(("mixtral", {"tp": 4, "ep": 4, "etp": 1, "travel": "tp"})),
    slow(("mixtral", {"tp": 4, "ep": 2, "etp": 2})),
    slow(("mixtral", {"cp": 2, "tp": 2, "ep": 4, "etp": 1, "cp_attention": "ring", "zero": 1})),
    slow(("mixtral", {"dp": 2, "cp": 2, "ep": 2, "cp_attention": "rows", "zero": 1})),
    slow(("mixtral", {"dp": 2, "cp": 2, "ep": 4, "cp_attention": "rows", "zero": 3})),
    ("mixtral", {"cp": 4, "ep": 2, "cp_attention": "ring", "zero": 1}),  # half of cp: both its factors in one ring
    slow(("mixtral", {"cp": 4, "ep": 2, "cp_attention": "rows", "zero": 3, "travel": "cp2"})),
    slow(("mixtral", {"cp": 4, "ep": 2, "cp_attention": "heads"})),
    slow(("gpt_oss", {"dp": 2, "cp": 2, "cp_attention": "rows", "zero": 1, "micro_batch": 4})),  # attention written out
    slow(("gpt_oss", {"dp": 2, "cp": 2, "cp_attention": "heads", "zero": 3, "micro_batch": 4})),
    slow(("jamba", {"dp": 2, "cp": 2, "cp_attention": "rows", "zero": 3, "micro_batch": 4})),
    slow(("mixtral", {"dp": 4, "ep": 2, "zero": 3})),
    slow(("mixtral", {"dp": 4, "ep": 4, "zero": 3})),
    slow(("mixtral", {"dp": 2, "pp": 2, "ep": 2, "zero": 1})),
    slow(("llama", {"dp": 4, "dp_replicate": 2, "zero": 3, "micro_batch": 1})),
    slow(("mixtral", {"dp": 4, "ep": 2, "dp_replicate": 2, "zero": 3, "micro_batch": 1})),
    slow(("mixtral", {"dp": 4, "ep": 2, "dp_replicate": 2, "zero": 1})),
    slow(("llama", {"dp": 2, "cp": 2, "dp_replicate": 2, "zero": 1, "cp_attention": "rows"})),
]
EIGHT = [
    ("llama", {"cp": 2, "tp": 2, "pp": 2, "cp_attention": "rows"}),
    ("llama", {"cp": 2, "tp": 2, "dp": 2, "cp_attention": "ring", "zero": 3}),
    ("llama", {"cp": 4, "tp": 2, "cp_attention": "ring", "zero": 1}),
    ("gpt2", {"cp": 2, "pp": 2, "dp": 2, "cp_attention": "heads", "zero": 1}),
    ("gpt2", {"cp": 2, "tp": 4, "tensor": (2, 2), "tensor_system": "ulysses", "cp_attention": "rows"}),
    ("gpt2", {"cp": 2, "tp": 4, "tensor": (2, 2), "tensor_system": "ulysses", "cp_attention": "ring", "zero": 1}),
    ("mixtral", {"dp": 4, "tp": 2, "ep": 4, "etp": 2}),
    ("qwen3_moe", {"dp": 4, "tp": 2, "ep": 4, "etp": 1, "zero": 3, "travel": "ep"}),
    ("gpt_oss", {"dp": 4, "tp": 2, "ep": 4, "etp": 1, "travel": "ep"}),
    ("mixtral", {"dp": 2, "tp": 2, "pp": 2, "ep": 2, "etp": 2}),
    ("mixtral", {"dp": 2, "cp": 2, "tp": 2, "ep": 2, "etp": 2, "cp_attention": "rows"}),
    ("mixtral", {"dp": 8, "ep": 4, "zero": 2}),
    ("mixtral", {"dp": 4, "tp": 2, "ep": 2, "etp": 2, "zero": 3}),
    ("mixtral", {"dp": 4, "cp": 2, "ep": 4, "cp_attention": "rows", "zero": 1}),
    ("mixtral", {"dp": 4, "cp": 2, "ep": 2, "cp_attention": "rows", "zero": 3}),
    ("qwen3_moe", {"dp": 2, "cp": 2, "tp": 2, "ep": 8, "etp": 1, "cp_attention": "rows", "zero": 1, "travel": "ep"}),
    ("deepseek_v3", {"dp": 2, "cp": 2, "tp": 2, "ep": 8, "etp": 1, "cp_attention": "rows", "zero": 3, "travel": "ep"}),
    ("qwen3_moe", {"cp": 4, "tp": 2, "ep": 4, "etp": 1, "cp_attention": "ring", "zero": 1, "travel": "cp2"}),
    ("mixtral", {"cp": 4, "tp": 2, "ep": 2, "etp": 2, "cp_attention": "ring", "zero": 3}),
    ("deepseek_v3", {"dp": 2, "cp": 4, "ep": 2, "cp_attention": "rows", "zero": 3, "travel": "cp2"}),
    ("qwen3_moe", {"cp": 8, "ep": 4, "cp_attention": "rows", "zero": 1, "micro_batch": 8, "travel": "cp2"}),
    ("gpt_oss", {"dp": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 1, "cp_attention": "rows", "zero": 1, "micro_batch": 4}),
    ("jamba", {"dp": 2, "cp": 2, "tp": 2, "cp_attention": "rows", "zero": 3, "micro_batch": 4}),
    ("deepseek_v3", {"dp": 8, "ep": 8, "zero": 1, "travel": "ep"}),
    ("gpt_oss", {"dp": 4, "pp": 2, "ep": 4, "zero": 1, "travel": "ep"}),
    ("llama", {"dp": 8, "dp_replicate": 2, "zero": 3, "micro_batch": 1}),
    ("gpt2", {"dp": 8, "dp_replicate": 4, "zero": 2, "micro_batch": 1}),
    ("llama", {"dp": 4, "pp": 2, "dp_replicate": 2, "zero": 1, "micro_batch": 1}),
    ("mixtral", {"dp": 8, "ep": 2, "dp_replicate": 2, "zero": 3}),
    ("mixtral", {"dp": 8, "ep": 4, "dp_replicate": 2, "zero": 3, "micro_batch": 1}),
]


@pytest.fixture(scope="module")
def eight() -> Iterator[RankPool]:
    with RankPool(8, timeout_s=600) as ranks:
        yield ranks


def made(name: str) -> tuple[nn.Module, Batch]:
    """A small model with its batch of eight rows; mixtures of eight experts beside those of ``zoo``."""
    if name in zoo.MODELS:
        return zoo.small(name, layers=2)[:2]
    if name in ARCHITECTURES and name not in MIXTURES:
        return ARCHITECTURES[name].module(), ARCHITECTURES[name].example()
    torch.manual_seed(0)
    return MIXTURES[name]().train(), tokens()


def plan_of(name: str, devices: int, pinned: dict) -> Plan:
    module, batch = made(name)
    sizes = {"dp": 1, "tp": 1, "pp": 1, "micro_batch": min(2, 8 // pinned.get("dp", 1))} | pinned
    axis = sizes.pop("travel", "")  # where tokens must travel: that few are cheaper gathered
    plan = parallelize_alone(
        module, f"1x{devices} cpu", batch, parallelism=Parallelism(**sizes), effort="fast",
        constraints=[forbid("autoplan.experts", "P", axis=axis)] if axis else [],
    )  # fmt: skip
    bodies = {s.body for block in plan.lowered.blocks for s in block.body if isinstance(s, Compute)}
    assert not axis or "routed_experts" in bodies
    return plan


def check(pool: RankPool, name: str, devices: int, pinned: dict) -> Plan:
    plan = plan_of(name, devices, pinned)
    record = in_float64(plan.record)
    module, batch = made(name)
    module = module.double()
    assert isinstance(batch, dict) and isinstance(record.training, Training)
    found = in_pool(pool, record, batch, module.state_dict(), train_on_rank, STEPS)
    expected = train_eagerly(module, None, batch, record.training, STEPS)
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL
    assert parameter_error(found, expected, zero_gradients(expected)).error < 1e-9
    return plan


@pytest.mark.parametrize(("name", "pinned"), FOUR)
def test_axes_together_equal_one_device(pool: RankPool, name: str, pinned: dict) -> None:
    plan = check(pool, name, 4, pinned)
    sizes = {axis: getattr(plan.record.chosen.parallelism, axis) for axis in ("dp", "ep", "cp", "tp")}
    assert sizes == {axis: pinned.get(axis, 1) for axis in sizes}
    if "cp" in pinned:
        between = [v.layout.state("cp") for b in plan.lowered.blocks for v in b.inputs if len(v.type.shape) == 3]
        assert between and set(between) == {S(1)}
    if "ep" in pinned:
        folded = plan.record.chosen.parallelism.folding.axes
        experts = [p.layout for p in plan.lowered.parameters if "experts" in p.name]
        assert experts and all(layout.dims[0] == folded for layout in experts)
        rows = [axis for axis in folded if axis != "tp"]
        others = [p.layout for p in plan.lowered.parameters if "experts" not in p.name]
        assert all(layout.state(axis).kind != "S" for layout in others for axis in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pinned"), EIGHT)
def test_eight_ranks_equal_one_device(eight: RankPool, name: str, pinned: dict) -> None:
    check(eight, name, 8, pinned)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in EIGHT}))
def test_eight_ranks_equal_one_device_in_float32_under_torchrun(tmp_path: Path, name: str) -> None:
    """All plans of a model under one start, as users start them."""
    plans = [plan_of(name, 8, pinned) for model, pinned in EIGHT if model == name]
    folders = {str(number): Path(plan.export(tmp_path / f"plan{number}")) for number, plan in enumerate(plans)}
    module, batch = made(name)
    assert isinstance(batch, dict)
    state = {key: value.clone().contiguous() for key, value in module.state_dict().items()}
    save_file(state, weights := tmp_path / "weights.safetensors")
    found = gradients_of_folders(8, folders, str(weights), batch)
    assert not isinstance(found, str), found
    alone, exact = (train_eagerly(m, None, batch, Training(precision=p), 1)
                    for m, p in ((module, "fp32"), (copy.deepcopy(module).double(), "fp64")))  # fmt: skip
    for run in found.values():
        assert loss_error(run, alone).error < FLOAT32.loss
        assert gradient_error(run, alone, zero_gradients(exact)).error < FLOAT32.gradients


@pytest.mark.parametrize(
    ("model", "pinned", "said"),
    [
        (llama(heads=6, kv=6, hidden=48), {"cp": 4, "cp_attention": "heads"}, "cp=4 with cp_attention='heads': the 6"),
        (llama(seq=62), {"cp": 4}, "a sequence of 62 doesn't divide by cp=4"),
        (mlp(), {"cp": 2}, "the model has no attention over a sequence"),
        (llama(), {"ep": 2}, "ep=2: the model has no mixture of experts"),
        (llama(), {"etp": 2}, "etp=2: .*where experts are over ep"),
        (llama(), {"cp": 3}, "they multiply to 3, and the cluster has 8 devices"),
        (llama(), {"dp": 2, "tp": 2, "pp": 2, "cp": 2}, "they multiply to 16, and the cluster has 8 devices"),
    ],
)
def test_what_can_not_lie_on_an_axis_is_told(model: object, pinned: dict, said: str) -> None:
    cluster = ClusterSpec.parse("1x8 cpu")
    with pytest.raises(ParallelismError, match=said), alone():
        search(model, cluster, Training(), resolve(Parallelism(**pinned), cluster), (), "fast")  # type: ignore[arg-type]


def test_a_way_of_attention_that_can_not_be_is_left_out() -> None:
    """Six heads can't be dealt to four ranks, rows can."""
    cluster = ClusterSpec.parse("1x4 cpu")
    with alone():
        chosen = search(llama(heads=6, kv=6, hidden=48), cluster, Training(), Parallelism(cp=4), (), "fast")[0]
    assert chosen.parallelism.cp == 4 and chosen.parallelism.cp_attention in ("rows", "ring")


def test_keys_of_an_attention_that_is_written_out_can_not_go_round() -> None:
    with pytest.raises(ParallelismError, match=r"self_attn is written out, so its .* use 'ulysses' or 'context-par"):
        plan_of("gpt_oss", 2, {"cp": 2, "cp_attention": "ring", "micro_batch": 8})


def test_long_rows_find_a_context_axis_by_themselves() -> None:
    """One row on sixteen devices of two nodes: a tensor axis stays within a node, the context's spans them."""
    cluster = ClusterSpec.parse("2x8 h100-sxm")
    model = llama(batch=1, seq=65536, hidden=256, ffn=512, heads=2, kv=2)
    with alone():
        chosen = search(model, cluster, Training(), Parallelism(), (), "fast")[0]
    assert chosen.mesh.size("cp") > 1 and chosen.mesh.devices == 16
