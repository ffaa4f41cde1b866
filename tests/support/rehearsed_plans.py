"""Small plans, exported to be rehearsed, and what their ranks really take."""

from __future__ import annotations

import gc
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import autoplan
from autoplan import Parallelism, Plan, Training
from autoplan.runtime import host
from autoplan.runtime.agreement.fingerprint import WORDS
from autoplan.runtime.data.sources import batch_source
from tests.bench.memory.watch import Tensors
from tests.support.planning import parallelize_unproved

LENGTH, ROWS = 64, 24


def llama(layers: int = 4, vocabulary: int = 256, tied: bool = False) -> nn.Module:
    """Of grouped heads, with a width that three ranks of ZeRO don't divide."""
    sizes = {"vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "use_cache": False}
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=tied))


def mixtral() -> nn.Module:
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "use_cache": False}
    with torch.device("meta"):
        return MixtralForCausalLM(MixtralConfig(**sizes, **heads, max_position_embeddings=LENGTH))


def planned(model: nn.Module, cluster: str, precision: str = "fp32", **fields: object) -> Plan:
    """A plan with these fields of its parallelism pinned; one of an axis that isn't given is 1."""
    batch = {name: torch.zeros(ROWS, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
    pinned = Parallelism(**{"dp": 1, "tp": 1, "pp": 1, "recompute": "none", **fields})  # type: ignore[arg-type]
    training = Training(optimizer="adamw", precision=precision)
    return parallelize_unproved(model, cluster, batch, training=training, parallelism=pinned)


def tensors_of_rank(rank: int, size: int, folder: str) -> int:
    """The most bytes of tensors that a rank has in a step and its update, after a first one.

    Without what lies with the host beside an accelerator: the batch as it is given, and the weights of its hash. What
    goes to the accelerator of a batch is a copy here, too, though it needs none.
    """
    tensors, host_bytes = Tensors(), 0
    with tensors, patch.object(host, "to_device", lambda x, device: x.clone()):
        program = autoplan.load(Path(folder)).program()
        program.init_weights()
        source = batch_source(program.spec, None, 0)
        for step in range(2):
            gc.collect()
            tensors.restart()
            batch = source(step)
            host_bytes = sum(value.nbytes for value in batch.values()) + WORDS * torch.int64.itemsize
            program.step(batch)
            program.optimizer.step()
    return tensors.peak_bytes - host_bytes
