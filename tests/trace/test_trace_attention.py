"""What transformers' attentions may be given beside queries, keys and values: honoured, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from autoplan.errors import TraceError
from autoplan.options import Parallelism
from autoplan.trace.huggingface import attention
from tests.support.planning import parallelize_alone

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


class Masking(LlamaForCausalLM):
    """Makes the mask by itself, as pix2struct's encoder does of its patches, and its decoder of the labels."""

    made: Callable[[torch.Tensor], torch.Tensor]

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids=input_ids, attention_mask=self.made(input_ids), labels=labels).loss


def ones(ids: torch.Tensor) -> torch.Tensor:
    """Looked at and cut out of more, as encoders do with it."""
    mask = torch.ones(ids.shape[0], ids.shape[1] + 3).to(ids.device)[:, -ids.shape[1] :]
    assert mask.bool().all()
    return torch.cat([mask[:, :2], torch.ones_like(mask)[:, 2:].long()], 1)


def ones_but_for_the_first(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(ids.shape)
    mask[:, :1] = 0
    return mask


def joined_by_name(ids: torch.Tensor) -> torch.Tensor:
    return torch.logical_and(torch.ones_like(ids, dtype=torch.bool), other=ids != 0)


def joined_with_a_number(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids, dtype=torch.bool)
    return torch.cat([mask[:, :1] & False, mask[:, 1:]], 1)


MASKS = [lambda ids: ids != 0, ones_but_for_the_first, joined_by_name, joined_with_a_number, ones]


def masking(made: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Masking, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 32}
    config = LlamaConfig(**sizes, num_hidden_layers=2)
    model, ids = Masking(config), torch.randint(1, 32, (4, 8))
    ids[:, 6:] = 0
    model.made = made  # type: ignore[method-assign]
    return model, {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.usefixtures("verified_in_pool")
@pytest.mark.parametrize("made", MASKS, ids=["padding", "first", "by name", "number", "ones"])
def test_a_mask_that_forward_makes_hides_what_it_says(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, batch = masking(made)
    plan = parallelize_alone(model, "1x2 cpu", batch, parallelism=Parallelism(dp=2, tp=1, pp=1))
    attentions = [n for b in plan.record.model.blocks for n in b.nodes if n.op.startswith("aten.scaled_dot_product")]
    assert {(node.args[3] is None, node.args[5]) for node in attentions} == {(made is ones, made is ones)}
    assert plan.verify(batch=batch).passed
