"""A rank that initialises its shards holds, beside them, no more than the largest parameter; the values are those of
one device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.options import Parallelism
from autoplan.trace.initialise import init_model, record, replay
from autoplan.trace.initialise.draws import PIECE
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled
from tests.support.tensor_life import TensorLife

WIDTH, LAYERS, VOCABULARY = 128, 4, 4096
SLACK = 3 * PIECE * 4  # bytes: what is drawn for others, a piece at a time
PLANS = {
    "tp=2 pp=2": Parallelism(dp=1, tp=2, pp=2, micro_batch=2),
    "dp=4, ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=2),
    "dp=2 tp=2, ZeRO-1": Parallelism(dp=2, tp=2, pp=1, zero=1, micro_batch=2),
}


def llama() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=4 * WIDTH, max_position_embeddings=64))


def gpt2() -> nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, bos_token_id=1, eos_token_id=2))


def bert() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    off = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return BertForMaskedLM(BertConfig(**sizes, **off, intermediate_size=4 * WIDTH, max_position_embeddings=64))


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert}


def hollow(model: str) -> nn.Module:
    with torch.device("meta"):
        return MODELS[model]()


def bytes_of(tensors: Iterator[torch.Tensor]) -> list[int]:
    return [t.numel() * t.element_size() for t in tensors]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


@dataclass(frozen=True)
class Held:
    """Bytes on one rank: of its parameters and buffers, of the buckets in which gradients are summed, and the most
    beside what is there while the program is made, buckets and all, and while it is initialised."""

    shards: int
    buckets: int
    making: int
    initialising: int
    state: dict[str, torch.Tensor]


def initialised(rank: int, world: int, folder: str) -> Held:
    plan = autoplan.load(folder)
    with TensorLife() as making:
        program = plan.program()
    shards = sum(bytes_of(h.values for h in program.held)) + sum(bytes_of(iter(program.stages.buffers.values())))
    with TensorLife() as life:
        program.init_weights(seed=3)
    buckets = sum(bytes_of(bucket.flat for bucket in program.sums.buckets))
    return Held(shards, buckets, making.most, life.most, dict(program.full_state_dict()))


@pytest.mark.parametrize(
    ("model", "plan"),
    sampled(
        [*(("llama", plan) for plan in PLANS), ("gpt2", "dp=4, ZeRO-3"), ("bert", "tp=2 pp=2")],
[("llama", "tp=2 pp=2")],
    ),
)
def test_a_rank_holds_its_shards_and_the_largest_parameter(
    pool: RankPool, tmp_path: Path, model: str, plan: str
) -> None:
    module = hollow(model)
    ids = torch.zeros(8, 16, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids.clone()}
    folder = parallelize_unproved(module, "1x4 cpu", batch, parallelism=PLANS[plan]).export(tmp_path / "out")
    found = pool.run(initialised, str(folder))
    sizes = bytes_of(module.parameters())
    for rank, held in enumerate(found):
        assert held.initialising <= max(sizes) + SLACK, f"rank {rank}"
        made = held.shards + held.buckets
        assert held.making <= made + SLACK, f"rank {rank}: {held.making / made:.2f} of its shards and buckets"
        assert held.shards + max(sizes) + SLACK < sum(sizes), "or the bound would say nothing"
    expected = init_model(module, 3).state_dict()
    assert found[0].state.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found[0].state.items())


@pytest.mark.parametrize("model", MODELS)
def test_a_replay_for_some_holds_the_largest_of_those(model: str) -> None:
    """The embedding, the largest parameter, is drawn, but nobody wants it."""
    module = hollow(model)
    recipe = record(module)
    wanted = {name: p for name, p in module.named_parameters() if "layer" in name or ".h." in name}
    with TensorLife() as life:
        for _, value in replay(recipe, 0, list(wanted)):
            del value
    largest = max(bytes_of(iter(wanted.values())))
    assert largest < math.prod((VOCABULARY, WIDTH)) * 4 / 2
    assert largest <= life.most <= largest + SLACK and life.alive <= 1024
