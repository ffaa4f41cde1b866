"""Systems that split rows on one tensor axis: equal to one device, with the collectives that their papers count."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.ir.layout import S
from autoplan.ir.typed_program import Compute, LoweredBlock, Move
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.row_systems import ROW_SYSTEMS
from autoplan.search.space.systems import resolve
from autoplan.verify.compare import gradient_error, loss_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.support import zoo
from tests.support.hand_made import llama, mlp
from tests.support.planning import alone, parallelize_alone
from tests.support.sampling import sampled, slow

EQUAL = 1e-10
MODELS, SYSTEMS = ("llama", "gpt2", "bert"), ("ulysses", "context-parallel", "ring-attention", "vocab-parallel")
EXPERTS = ("expert-all-to-all", "expert-partial-sum")
CELLS = [*((model, system) for model in MODELS for system in SYSTEMS), *(("mixtral", system) for system in EXPERTS)]
SHIFTED = [("shifted", system) for system in ("ulysses", "ring-attention")]
# each system once, on each model that it has a body of its own for
QUICK = [
    ("gpt2", "ulysses"), ("llama", "ring-attention"), ("mixtral", "expert-all-to-all"), ("shifted", "ring-attention"),
]  # fmt: skip
PASSED = ("all-to-all", "all-to-all")  # forward, backward
GATHERED, SCATTERED = ("all-gather", "reduce-scatter"), ("reduce-scatter", "all-gather")


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + seen.transpose(1, 2).flatten(2)


class Shifted(nn.Module):
    """A decoder that cuts its logits: each row's loss is with the label of the row behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(zoo.VOCABULARY, zoo.HIDDEN), nn.Linear(zoo.HIDDEN, zoo.VOCABULARY)
        self.layers = nn.ModuleList(Layer(zoo.HIDDEN) for _ in range(2))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], autoplan.Plan]:
    """Every plan that a test of this file has asked for."""
    return {}


def model_of(name: str) -> tuple[nn.Module, zoo.Batch]:
    if name == "shifted":
        torch.manual_seed(0)
        return Shifted(), zoo.batch_of("llama")
    module, batch, _ = zoo.small(name, layers=2)
    return module, batch


def plan_of(plans: dict[tuple[str, str], autoplan.Plan], name: str, system: str) -> autoplan.Plan:
    if (name, system) not in plans:
        module, batch = model_of(name)
        plans[name, system] = parallelize_alone(module, "1x4 cpu", batch, parallelism=system)
    return plans[name, system]


@pytest.mark.parametrize(
    ("name", "system"), sampled([*CELLS, *SHIFTED], QUICK)
)
def test_it_equals_one_device(
    pool: RankPool, plans: dict[tuple[str, str], autoplan.Plan], name: str, system: str
) -> None:
    """The sequence is split, so the loss of a rank's last row is with a label that the next rank has."""
    record = in_float64(plan_of(plans, name, system).record)
    assert isinstance(record.training, Training) and record.chosen.parallelism.tensor_system == system
    module, batch = model_of(name)
    module = module.double()
    assert isinstance(batch, dict)
    found = in_pool(pool, record, batch, module.state_dict(), train_on_rank, 1)
    expected = train_eagerly(module, None, batch, record.training, 1)
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL


def layer_of(plan: autoplan.Plan) -> LoweredBlock:
    """The block that has attention."""
    return next(b for b in plan.lowered.blocks if any(isinstance(s, Compute) and "attention" in s.op for s in b.body))


def crossing(block: LoweredBlock) -> Counter[tuple[str, str]]:
    steps = [step for s in block.body if isinstance(s, Move) for step in s.collectives]
    return Counter((step.forward, step.backward) for step in steps if step.forward or step.backward)


@pytest.mark.parametrize(
    ("name", "system", "moves", "body"),
    [("gpt2", "ulysses", {PASSED: 4}, ""), slow(("bert", "ulysses", {PASSED: 4}, "")),
     slow(("llama", "ulysses", {PASSED: 2, GATHERED: 2}, "grouped_attention")),
     ("gpt2", "context-parallel", {GATHERED: 2}, "causal_attention_rows"),
     slow(("bert", "context-parallel", {GATHERED: 2}, "")),
     ("llama", "ring-attention", {}, "ring_attention"), slow(("bert", "ring-attention", {}, "ring_attention")),
     ("mixtral", "expert-partial-sum", {GATHERED: 2, SCATTERED: 1}, "local_experts"),
     ("mixtral", "expert-all-to-all", {}, "routed_experts")],
)  # fmt: skip
def test_a_layer_has_the_collectives_of_its_paper(
    plans: dict[tuple[str, str], autoplan.Plan], name: str, system: str, moves: dict, body: str
) -> None:
    """Ulysses: an all-to-all each for queries, keys, values and the result, and as many backward; two heads of keys
    can't be dealt to four ranks and are gathered. Context parallel: keys and values gathered, their gradients
    reduce-scattered. A mixture: tokens and their experts' scores gathered, what the experts give added up; or tokens
    travel within the operator."""
    block = layer_of(plan_of(plans, name, system))
    assert crossing(block) == moves
    bodies = [s.body for s in block.body if isinstance(s, Compute) and ("attention" in s.op or "experts" in s.op)]
    assert "".join(bodies) == body


@pytest.mark.parametrize(("name", "system"), sampled(CELLS, [cell for cell in QUICK if cell in CELLS]))
def test_parameters_are_whole_but_for_what_the_system_splits(
    plans: dict[tuple[str, str], autoplan.Plan], name: str, system: str
) -> None:
    plan = plan_of(plans, name, system)
    split = {p.name for p in plan.lowered.parameters if p.layout.state("tp").kind == "S"}
    if ROW_SYSTEMS[system].attention:
        assert not split
        between = [v.layout.state("tp") for b in plan.lowered.blocks for v in b.inputs if len(v.type.shape) == 3]
        assert between and set(between) == {S(1)}
    elif system == "vocab-parallel":
        shapes = {p.type.shape for p in plan.lowered.parameters if p.name in split}
        assert shapes == {(zoo.VOCABULARY, zoo.HIDDEN)} | ({(zoo.VOCABULARY,)} if name == "bert" else set())
        assert all(p.layout.state("tp") == S(0) for p in plan.lowered.parameters if p.name in split)
    else:
        assert split and all("experts" in name for name in split)


@pytest.mark.parametrize(
    ("model", "pinned", "said"),
    [
        (llama(heads=6, kv=6, hidden=48), "ulysses", "the 6 heads of attn don't divide by tp=4"),
        (llama(seq=62), "ring-attention", "a sequence of 62 doesn't divide by tp=4"),
        (mlp(), "context-parallel", "the model has no attention over a sequence"),
        (mlp(), "vocab-parallel", "the model has no table of tokens"),
        (llama(vocab=510), "vocab-parallel", "a vocabulary of 510 doesn't divide by tp=4"),
        (llama(), "expert-parallel", "the model has no mixture of experts"),
        (llama(), Parallelism(tensor=(2, 2), tensor_system="vocab-parallel"), "it lies on one tensor axis"),
        (llama(), Parallelism(tp=1, tensor_system="ulysses"), "tp, which has one device"),
    ],
)
def test_what_can_not_be_split_is_told(model: Model, pinned: str | Parallelism, said: str) -> None:
    with pytest.raises(ParallelismError, match=said), alone():
        cluster = ClusterSpec.parse("1x4 cpu")
        search(model, cluster, Training(), resolve(pinned, cluster), (), "fast")


def test_a_system_of_rows_goes_with_a_pipeline_and_data_parallel() -> None:
    chosen = planned(llama(batch=16), "1x8 cpu", Parallelism(tp=2, pp=2, tensor_system="ring-attention"))
    assert str(chosen.mesh).startswith("pp=2 dp=2 tp=2")
    assert bodies_of(chosen) == {"ring_attention"}


def test_the_search_splits_rows_of_a_long_sequence_by_itself() -> None:
    """One row of a batch can't be data parallel, and two heads can't be dealt to eight devices."""
    chosen = planned(llama(batch=1, seq=65536, hidden=256, ffn=512, heads=2, kv=2), "1x8 h100-sxm", Parallelism())
    assert chosen.mesh.operator_ways == 8
    assert bodies_of(chosen) <= {"ring_attention", "causal_attention_rows"} and bodies_of(chosen)


def planned(model: Model, cluster: str, pinned: Parallelism) -> Chosen:
    spec = ClusterSpec.parse(cluster)
    with alone():
        return search(model, spec, Training(), resolve(pinned, spec), (), "fast")[0]


def bodies_of(chosen: Chosen) -> set[str]:
    """What attention runs by."""
    ways = [way for block in chosen.blocks for name, s in block.strategies if name == "attn" for _, way in s.axes]
    return {way.body for way in ways if way.body}
