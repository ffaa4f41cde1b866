"""Counts of parameters against published models."""

from __future__ import annotations

import pytest

from tests.bench.closed_form.transformer.model import Recipe, Transformer


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        (Transformer(768, 12, 12, 1024, 50257), 0.124440),                                        # GPT-2
        (Transformer(12288, 96, 96, 2048, 51200), 174.6),                                         # SC21, table 2
        (Transformer(4096, 32, 32, 8192, 128256, kv_heads=8, ffn=14336, gated=True, tied=False, bias=False,
                     norm="rms",
                     positions="rotary"), 8.030),                                                    # Llama 3.1 8B
        (Transformer(4096, 32, 32, 4096, 32000, kv_heads=8, ffn=14336, gated=True, tied=False, bias=False,
                     norm="rms",
                     positions="rotary", experts=8, top_k=2), 46.70),                                # Mixtral 8x7B
    ],
)  # fmt: skip
def test_parameters(model, billions):
    assert model.parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_global_batch():
    recipe = Recipe(tensor=8, data=4, pipeline=2, micro_batch=2, microbatches=16)
    assert (recipe.devices, recipe.sequences) == (64, 128)
