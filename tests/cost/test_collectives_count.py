"""Decoders under tp=4 hold the collectives of Megatron-LM's hand-written layers, or fewer.

Megatron's layer (Shoeybi et al. 2019, figure 4) has two all-reduces forward, behind attention and behind the MLP, and
two backward; its embedding one forward, its output head one backward, its loss over split classes three small ones
forward. A reduce-scatter and an all-gather are one all-reduce (Korthikanti et al. 2022, section 4.2.2). Where there are
fewer heads of keys than ranks Megatron gathers queries, keys and values in front of attention, so here there are as
many. A mixture of experts has no more than a dense one: its router is whole on every rank, and what the experts give is
added up. (Megatron's dispatcher gathers what the router says, too: the experts chosen and their shares, whose gradients
go back; core/transformer/moe/token_dispatcher.py, ``MoEAllGatherTokenDispatcher``.) OLMoE's queries and keys are
normalised over all heads together, for which Megatron has no layer: these gather them, and their gradients behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoplan.cost import operators_of
from autoplan.ir.typed_program import Collective, Compute, Move
from autoplan.options import Parallelism
from autoplan.plan import Plan
from autoplan.search.space.tensor_axes import routers
from tests.bench.architectures.architecture import HEADS, LAYERS, Architecture
from tests.bench.architectures.catalog import ARCHITECTURES
from tests.bench.architectures.cells import CLUSTER, TRAINING
from tests.support.planning import parallelize_alone

TIMES = {"all-reduce": 1.0} | dict.fromkeys(
    ("all-gather", "reduce-scatter", "all-to-all", "all-to-all-v", "permute"), 0.5
)
FORWARD = BACKWARD = 2 * LAYERS + 1
OF_NORMS = 1.0 * LAYERS  # of queries and of keys over all heads, half an all-reduce each way
OF_LOSS = 2  # Megatron has three: it sums the exponentials and the targets' logits one after the other
QUICK = ("gpt2", "bloom")
MORE = ("gpt_neox", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "falcon", "opt")

WIDER, WIDTHS = 8, ("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim")
MIXTURES = ("mixtral", "qwen2_moe", "gpt_oss")


def with_heads_for_all(one: Architecture) -> Architecture:
    """As many heads of keys and values as ranks, where the configuration says how many."""
    if "num_key_value_heads" not in one.sizes:
        return one
    return replace(one, sizes={**one.sizes, "num_key_value_heads": HEADS})


def wider(one: Architecture) -> Architecture:
    """So wide that matrices are split: of one as small as in the zoo what begins a collective is most of a step, and
    some are quicker whole where their gradients are summed with others'."""
    return replace(one, sizes={name: size * WIDER if name in WIDTHS else size for name, size in one.sizes.items()})


@pytest.fixture(scope="module")
def llama() -> Plan:
    return planned(with_heads_for_all(ARCHITECTURES["llama"]))


def planned(one: Architecture) -> Plan:
    return parallelize_alone(
        one.module("meta"), CLUSTER, one.example(), training=TRAINING, parallelism=Parallelism(tp=4, tensor=(4,))
    )


def steps(plan: Plan) -> Iterator[Collective]:
    """Of every segment, what its program moves."""
    for segment in plan.lowered.segments:
        for step in plan.lowered.blocks[segment.block].body:
            if isinstance(step, Move):
                yield from step.collectives


def units(plan: Plan) -> tuple[float, float]:
    """All-reduces forward and backward, with what is half of one."""
    found = list(steps(plan))
    return sum(TIMES[s.forward] for s in found if s.forward), sum(TIMES[s.backward] for s in found if s.backward)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_decoder_has_megatrons_collectives_or_fewer(name: str) -> None:
    plan = planned(with_heads_for_all(ARCHITECTURES[name]))
    forward, backward = units(plan)
    assert forward <= FORWARD, list(steps(plan))
    assert backward <= BACKWARD, list(steps(plan))
    assert_nothing_else(plan)


@pytest.mark.parametrize("name", [MIXTURES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MIXTURES[1:])])
def test_a_mixture_of_experts_has_no_more(name: str) -> None:
    plan = planned(wider(with_heads_for_all(ARCHITECTURES[name])))
    assert units(plan) == (FORWARD - 0.5, BACKWARD - 0.5), list(steps(plan))
    assert_nothing_else(plan)


@pytest.mark.slow
def test_routers_alone_need_not_be_split(llama: Plan) -> None:
    found = {}
    for name, plan in (("mixtral", planned(with_heads_for_all(ARCHITECTURES["mixtral"]))), ("llama", llama)):
        blocks = plan.record.model.blocks
        found[name] = frozenset[str]().union(*(routers(b, operators_of(b, fuses=False)) for b in blocks))
    assert found == {"mixtral": {"gate"}, "llama": frozenset()}


@pytest.mark.slow
def test_norms_over_all_heads_gather_them() -> None:
    plan = planned(wider(with_heads_for_all(ARCHITECTURES["olmoe"])))
    assert units(plan) == (FORWARD - 0.5 + OF_NORMS, BACKWARD - 0.5 + OF_NORMS), list(steps(plan))
    assert_nothing_else(plan)


def assert_nothing_else(plan: Plan) -> None:
    """What is moved is what the plan prices, and beside it there is the loss alone: no body of another operator
    communicates."""
    bodies = [s for b in plan.lowered.blocks for s in b.body if isinstance(s, Compute) and s.body]
    talking = [s for s in bodies if any(strategy.communicates for _, strategy in s.strategies)]
    assert [s.body for s in talking] == ["vocab_parallel_cross_entropy"]
    priced = [p for p in plan.predicted.collectives if p.where != "gradients of replicated weights"]
    moved = sum(bool(s.forward) + bool(s.backward) for s in steps(plan))
    assert sum(p.count for p in priced) == moved + OF_LOSS


def test_llama_has_exactly_megatrons(llama: Plan) -> None:
    plan = llama
    kinds = [kind for s in steps(plan) for kind in (s.forward, s.backward) if kind]
    assert kinds.count("all-reduce") == 4 * LAYERS + 1  # the embedding's columns are split, and gathered
    assert sorted(set(kinds)) == ["all-gather", "all-reduce"] and kinds.count("all-gather") == 1
    assert units(plan) == (FORWARD - 0.5, BACKWARD)
    assert not any(p.reduce_axes for p in plan.lowered.parameters), "no weight is whole whose gradient is a summand"
