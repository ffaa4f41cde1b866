"""Further models with a state in place of attention, and mixtures of both."""

from __future__ import annotations

from tests.bench.architectures.architecture import LAYERS, VOCABULARY, Architecture
from tests.bench.architectures.decoders import ENDS, GROUPED, decoder
from tests.bench.architectures.others import MAMBA

FURTHER: tuple[Architecture, ...] = tuple(
    Architecture(one.name, "state-space", one.model, one.config, one.sizes, one.batch)
    for one in (
        decoder("falcon_mamba", "FalconMamba", MAMBA),
        decoder("mamba2", "Mamba2", MAMBA, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
        decoder(
            "jamba", "Jamba", GROUPED, num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, mamba_d_state=8, use_mamba_kernels=False,
        ),
        decoder(
            "rwkv", "Rwkv", {**ENDS, "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS},
            attention_hidden_size=32, intermediate_size=64, context_length=64, rescale_every=0,
        ),
    )
)  # fmt: skip
