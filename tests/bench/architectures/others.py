"""Vision, speech, and models with a state in place of attention."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, Architecture
from tests.bench.architectures.batches import CLASSES, images, text
from tests.bench.architectures.decoders import WORDS

PATCHES = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def vision(name: str, stem: str, *, listed: bool = False, **sizes: object) -> Architecture:
    """A classifier of images."""
    sizes["num_labels"] = CLASSES
    return Architecture(name, "vision", f"{stem}ForImageClassification", f"{stem}Config", sizes, images, listed)


MAMBA = {**WORDS, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "state_size": 8}

LISTED = (
    Architecture("mamba", "state-space", "MambaForCausalLM", "MambaConfig", MAMBA, text, True),
    vision("vit", "ViT", listed=True, **PATCHES),
    vision("dinov2", "Dinov2", listed=True, **PATCHES),
    vision("resnet", "ResNet", listed=True, embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1]),
)
