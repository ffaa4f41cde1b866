"""Six small models with a batch each, for tests of every part: the classes are transformers' and torch's own.

Sizes divide by four, labels hold -100 unevenly over the rows, dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

BATCH, SEQUENCE, VOCABULARY, HIDDEN, LAYERS, HEADS = 8, 16, 96, 32, 4, 4
SIZES = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN,
}  # fmt: skip
Batch = dict[str, torch.Tensor] | tuple[torch.Tensor, ...]
LossFn = Callable[..., torch.Tensor] | None


def llama() -> nn.Module:
    """Grouped queries: two heads of keys and values."""
    special = {"bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, **special, num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=64)
    )


def gpt2() -> nn.Module:
    """A fused projection; the embedding and the head are tied."""
    sizes = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64, "vocab_size": VOCABULARY}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off))


def bert() -> nn.Module:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SIZES, **off, vocab_size=VOCABULARY, max_position_embeddings=64))


def vit() -> nn.Module:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(**SIZES, **off, image_size=32, patch_size=8, num_labels=12))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 12)
    )


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 12),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit, "mlp": mlp, "convnet": convnet,
}  # fmt: skip
NAMES = tuple(MODELS)
LOSSES: dict[str, LossFn] = {"mlp": F.cross_entropy, "convnet": F.cross_entropy}


def small(name: str, device: str = "cpu", seed: int = 0) -> tuple[nn.Module, Batch, LossFn]:
    """(model, batch, loss_fn) of one of NAMES; loss_fn is None where the model returns its loss."""
    torch.manual_seed(seed)
    with torch.device(device):
        model = MODELS[name]()
    return model.train(), batch_of(name, seed), LOSSES.get(name)


def batch_of(name: str, seed: int = 0) -> Batch:
    """The batch of eight rows, always with values."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("llama", "gpt2", "bert"):
        ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
        labels = ids if name != "bert" else torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
        return {"input_ids": ids, "labels": unevenly_ignored(labels)}
    classes = torch.randint(0, 12, (BATCH,), generator=generator)
    if name == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator), "labels": ignored_row(classes)}
    shape = (BATCH, 16) if name == "mlp" else (BATCH, 4, 16, 16)
    return torch.randn(*shape, generator=generator), ignored_row(classes)


def unevenly_ignored(labels: torch.Tensor) -> torch.Tensor:
    """-100 in place of the first tokens of each row: none of the last row's, more of earlier ones'."""
    positions = torch.arange(SEQUENCE)[None, :]
    ignored = 2 * (BATCH - 1 - torch.arange(BATCH)[:, None])
    return labels.clone().masked_fill(positions < ignored.clamp(max=SEQUENCE - 2), -100)


def ignored_row(classes: torch.Tensor) -> torch.Tensor:
    """-100 in place of two of the classes, both in the first half."""
    classes = classes.clone()
    classes[1] = classes[2] = -100
    return classes
