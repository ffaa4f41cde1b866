"""What an architecture is: classes of transformers by name, the sizes of its configuration, a batch.

A configuration's probabilities of dropping anything are set to zero wherever they stand, so that one device and
several compute the same; ``tests/runtime/test_dropout.py`` is about dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

BATCH, SEQUENCE, VOCABULARY, HIDDEN, LAYERS, HEADS = 8, 16, 96, 32, 4, 4
NOISE = 0.05  # standard deviation of what is added to every parameter, so that no bias is zero and no norm's scale one
Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model class with its configuration.

    kind    what it is: "decoder", "encoder", "encoder-decoder", "vision", "speech", "state-space"
    sizes   arguments of the configuration
    batch   makes its global batch, with values
    listed  named by the acceptance; the others are further ones
    """

    name: str
    kind: str
    model: str
    config: str
    sizes: Mapping[str, object]
    batch: Callable[[torch.Generator], Batch]
    listed: bool = False

    def configuration(self) -> PretrainedConfig:
        config = getattr(transformers, self.config)(**self.sizes)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return without_dropout(config)

    def module(self, device: str = "cpu", seed: int = 0) -> nn.Module:
        """The model in training mode; on the CPU with random weights, all of them noisy."""
        torch.manual_seed(seed)
        with torch.device(device):
            model = getattr(transformers, self.model)(self.configuration())
        if device != "meta":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=NOISE)
        return model.train()

    def example(self, seed: int = 0) -> dict[str, torch.Tensor]:
        return dict(self.batch(torch.Generator().manual_seed(seed)))


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration, and those inside it, with every probability of dropping something at zero."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            without_dropout(value)
        elif ("drop" in name or "pdrop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config
