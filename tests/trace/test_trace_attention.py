"""What transformers' attentions may be given beside queries, keys and values: honoured, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.errors import TraceError
from autoplan.trace.huggingface import attention

Q, K, V = (torch.randn(2, 2, 6, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


@pytest.mark.parametrize("mask", [None, CAUSAL[None, None], torch.zeros(1, 1, 6, 6).masked_fill(~CAUSAL, -1e30)])
def test_keys_that_are_chosen_are_the_only_ones_seen(mask: torch.Tensor | None) -> None:
    """DeepSeek's indexer gives their places, and leaves the mask to whoever runs attention."""
    chosen = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(n))[:2] for n in range(12)])
    chosen = torch.cat([chosen.view(2, 6, 2), torch.arange(6).expand(2, 6)[..., None]], -1)  # itself, too
    seen = torch.zeros(2, 6, 6, dtype=torch.bool).scatter(-1, chosen, True)[:, None] & CAUSAL
    expected = F.scaled_dot_product_attention(Q, K, V, seen).transpose(1, 2)
    found, _ = attention(nn.Identity(), Q, K, V, mask, is_causal=True, indices=chosen.int())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["block_indices", "s_aux", "sinks", "softcap"])
def test_what_would_change_the_numbers_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=rf"Identity: {name}: .*attn_implementation"):
        attention(nn.Identity(), Q, K, V, None, **{name: 1.0})
    attention(nn.Identity(), Q, K, V, None, **{name: None})
