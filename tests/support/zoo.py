"""Small models with a batch each: six for tests of every part, whose classes are transformers' and torch's own, three
whose values skip stages or whose rows are coupled, and a mixture of experts.

Sizes divide by four, labels hold -100 unevenly over the rows, dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from autoplan.models.named import import_file

BATCH, SEQUENCE, VOCABULARY, HIDDEN, LAYERS, HEADS = 8, 16, 96, 32, 4, 4
SIZES = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN}
EXAMPLES = Path(__file__).parents[2] / "examples"
Batch = dict[str, torch.Tensor] | tuple[torch.Tensor, ...]
LossFn = Callable[..., torch.Tensor] | None
Made = tuple[nn.Module, Batch, LossFn]


def llama(layers: int = LAYERS) -> nn.Module:
    """Grouped queries: two heads of keys and values."""
    return LlamaForCausalLM(LlamaConfig(**decoder(layers)))


def mixtral(layers: int = LAYERS, experts: int = 4) -> nn.Module:
    """Experts, of which each token has two."""
    return MixtralForCausalLM(MixtralConfig(**decoder(layers), num_local_experts=experts))


def decoder(layers: int) -> dict[str, int]:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return {**SIZES, **ends, "num_hidden_layers": layers, "num_key_value_heads": 2}


def gpt2(layers: int = LAYERS, dropout: float = 0.0) -> nn.Module:
    """A fused projection; the embedding and the head are tied."""
    sizes = {"n_embd": HIDDEN, "n_layer": layers, "n_head": HEADS, "n_positions": 64, "vocab_size": VOCABULARY}
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropped, bos_token_id=1, eos_token_id=2))


def bert(layers: int = LAYERS, dropout: float = 0.0) -> nn.Module:
    dropped = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    sizes = {**SIZES, "num_hidden_layers": layers, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return BertForMaskedLM(BertConfig(**sizes, **dropped))


def vit(layers: int = LAYERS) -> nn.Module:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {**SIZES, "num_hidden_layers": layers, "image_size": 32, "patch_size": 8, "num_labels": 12}
    return ViTForImageClassification(ViTConfig(**sizes, **off))


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


def example(name: str) -> ModuleType:
    return import_file(EXAMPLES / f"{name}.py")


def resnet() -> nn.Module:
    return example("resnet").make_model(width=8, depths=(1, 2), classes=12)


def unet() -> nn.Module:
    return example("unet").make_model(width=8, levels=2, classes=12, groups=4)


def dlrm(layers: int = 2) -> nn.Module:
    """Tables of 10 to 50 rows; as deep as it is."""
    return example("dlrm").make_model(rows=50, width=8, hidden=16, batch=BATCH)


def t5(layers: int = 2) -> nn.Module:
    """The bias of positions is made by the first layer of a stack and read by all; the encoder's result by all layers
    of the decoder."""
    sizes = {"d_model": HIDDEN, "d_kv": 8, "d_ff": 2 * HIDDEN, "num_heads": HEADS, "vocab_size": VOCABULARY}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(**sizes, **special, num_layers=layers, num_decoder_layers=layers))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit, "mlp": mlp, "convnet": convnet,
    "resnet": resnet, "unet": unet, "t5": t5, "mixtral": mixtral, "dlrm": dlrm,
}  # fmt: skip
NAMES = ("llama", "gpt2", "bert", "vit", "mlp", "convnet")
LOSSES: dict[str, LossFn] = {name: F.cross_entropy for name in ("mlp", "convnet", "resnet", "unet")}


def small(name: str, device: str = "cpu", seed: int = 0, **sizes: float) -> Made:
    """(model, batch, loss_fn) of one of MODELS; loss_fn is None where the model returns its loss.

    sizes  what its maker takes: layers, dropout, experts
    """
    torch.manual_seed(seed)
    with torch.device(device):
        model = MODELS[name](**sizes)
    return model.train(), batch_of(name, seed), LOSSES.get(name)


def batch_of(name: str, seed: int = 0) -> Batch:
    """The batch of eight rows, always with values."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("llama", "gpt2", "bert", "mixtral"):
        ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
        labels = ids if name != "bert" else torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
        return {"input_ids": ids, "labels": unevenly_ignored(labels)}
    if name == "dlrm":
        made = example("dlrm")
        return made.clicks_of(made.table_sizes(50), BATCH, seed)
    if name == "t5":
        ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 4), generator=generator)
        labels = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
        return {"input_ids": ids, "labels": unevenly_ignored(labels)}
    if name == "unet":
        pixels = torch.randint(0, 12, (BATCH, 8, 8), generator=generator)
        return torch.randn(BATCH, 3, 8, 8, generator=generator), pixels.masked_fill(pixels == 3, -100)
    classes = torch.randint(0, 12, (BATCH,), generator=generator)
    if name == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator), "labels": ignored_row(classes)}
    shapes = {"mlp": (16,), "convnet": (4, 16, 16), "resnet": (3, 32, 32)}
    shape = (BATCH, *shapes[name])
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
