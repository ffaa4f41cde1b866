"""A Hugging Face model as it is: Llama-3-8B on one node, planned without its weights or a GPU.

    python examples/llama.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rope_theta=500000.0,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
batch = {name: torch.empty(64, 8192, dtype=torch.int64, device="meta") for name in ("input_ids", "labels")}

plan = autoplan.parallelize(model, "1x8 h100-sxm", batch, training=autoplan.Training(precision="bf16-mixed"))
print(plan.report())
print(plan.explain("model.layers.0.mlp.down_proj"))
