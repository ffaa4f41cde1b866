"""Under mixed precision on one device: bit for bit what float32 parameters give that are cast at each use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan import Parallelism, Training
from autoplan.runtime.program import Program
from autoplan.runtime.sized_steps import SizedSteps
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled, slow

STEPS, ROWS, LENGTH = 3, 4, 24
HALVES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    """Its head is tied to the embedding: one parameter, two uses."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH, use_cache=False, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def exported(model: nn.Module, precision: str, folder: Path) -> dict[str, Tensor]:
    """The batch that was planned for."""
    ids = torch.randint(0, 128, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
    batch = {"input_ids": ids, "labels": ids}
    training = Training(precision=precision, learning_rate=1e-2, compile=False)
    pinned = Parallelism(dp=1, tp=1, pp=1, micro_batch=ROWS // 2, recompute="none")
    parallelize_unproved(model, "1x1 cpu", batch, training=training, parallelism=pinned).export(folder)
    return batch


class Recorded:
    """An engine that keeps what it is run on."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def run(self, keywords: Mapping[str, Tensor], scale: Any) -> Tensor:
        self.keywords = dict(keywords)
        return self.engine.run(keywords, scale)


def trained(rank: int, world: int, folder: str, batch: dict[str, Tensor]) -> dict[str, list[dict[str, Tensor]]]:
    """Losses, gradients and parameters after each step: the program's, and those of float32 leaves."""
    found: dict[str, list[dict[str, Tensor]]] = {"program": [], "leaves": []}
    with autoplan.load(folder).program() as program:
        program.init_weights(seed=1)
        leaves = {h.name: h.values.clone().requires_grad_() for h in program.held}
        engine = Recorded(program.engine)
        program.steps_at = SizedSteps(program.spec, engine)
        update = torch.optim.AdamW(leaves.values(), lr=1e-2, fused=True)
        for _ in range(STEPS):
            program.optimizer.zero_grad()
            loss = program.step(batch)
            gradients = {h.name: h.gradient.clone() for h in program.held if h.gradient is not None}
            program.optimizer.step()
            values = {h.name: h.values.clone() for h in program.held}
            found["program"].append({"loss": loss, **prefixed("grad", gradients), **prefixed("value", values)})
            update.zero_grad()
            loss = cast_at_each_use(program, leaves, engine.keywords)
            gradients = {name: leaf.grad for name, leaf in leaves.items()}
            update.step()
            values = {name: leaf.detach().clone() for name, leaf in leaves.items()}
            found["leaves"].append({"loss": loss, **prefixed("grad", gradients), **prefixed("value", values)})
    return found


def prefixed(word: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{word} {name}": tensor.clone() for name, tensor in tensors.items()}


def cast_at_each_use(program: Program, leaves: Mapping[str, Tensor], keywords: Mapping[str, Tensor]) -> Tensor:
    """Forward and backward of every microbatch by the same code; the sum of the losses."""
    stage, half = program.stages.modules[0], HALVES[program.spec.training.precision]
    names = {h.parameter: h.name for h in program.held}
    uses = {place: names[p] for place, p in stage.named_parameters(remove_duplicate=False)}
    factor = program.updates.scaling.factor if program.updates.scaling else 1.0
    losses = []
    for j in range(program.spec.microbatches):
        cast = {place: leaves[name].to(half) for place, name in uses.items()}
        given = {"batch": {name: value[j : j + 1] for name, value in keywords.items()}}
        loss = functional_call(stage, cast, (), given, tie_weights=False)
        (loss.float() * factor).backward()
        losses.append(loss.detach())
    for leaf in leaves.values():
        assert leaf.grad is not None
        leaf.grad /= factor
    return torch.stack(losses).sum()


@pytest.mark.parametrize(
    ("model", "precision"),
    sampled(itertools.product((llama, gpt2), HALVES), [(llama, "bf16-mixed")]),
)
def test_one_device_equals_casts_of_float32_parameters(
    shared_pools: Callable[[int], RankPool], model: Any, precision: str, tmp_path: Path
) -> None:
    batch = exported(model(), precision, tmp_path / "out")
    found = shared_pools(1).run(trained, str(tmp_path / "out"), batch)[0]
    for mine, theirs in zip(found["program"], found["leaves"], strict=True):
        assert mine.keys() == theirs.keys()
        for what, tensor in mine.items():
            assert tensor.dtype == theirs[what].dtype and torch.equal(tensor, theirs[what]), what


def saved(rank: int, world: int, folder: str, batch: dict[str, Tensor]) -> tuple[int, list[tuple[int, ...]]]:
    """How many weights a step's forward saves for its backward as they lie, and the shapes of those that it copied."""
    with autoplan.load(folder).program() as program:
        program.init_weights(seed=1)
        weights = {h.parameter.untyped_storage().data_ptr(): h.parameter for h in program.held}
        known = {tuple(p.shape) for p in weights.values()} | {tuple(p.shape)[::-1] for p in weights.values()}
        as_they_lie: set[int] = set()
        copied: list[tuple[int, ...]] = []

        def look(tensor: Tensor) -> Tensor:
            at = tensor.untyped_storage().data_ptr()
            if at in weights:
                as_they_lie.add(at)
            elif tensor.ndim == 2 and tuple(tensor.shape) in known:
                copied.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
            program.step(batch)
        return len(as_they_lie), copied


@pytest.mark.parametrize("model", [llama, slow(gpt2)])
def test_a_microbatch_keeps_no_copy_of_a_weight(
    shared_pools: Callable[[int], RankPool], model: Any, tmp_path: Path
) -> None:
    batch = exported(model(), "bf16-mixed", tmp_path / "out")
    assert "_weight.to(" not in (tmp_path / "out" / "program.py").read_text()
    count, copied = shared_pools(1).run(saved, str(tmp_path / "out"), batch)[0]
    assert count >= 9 and not copied
