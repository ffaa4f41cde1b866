"""Batches of eight rows with values. Labels hold -100 unevenly, so that ranks count different numbers of valid ones."""

from __future__ import annotations

import torch

from tests.bench.architectures.architecture import BATCH, SEQUENCE, VOCABULARY
from tests.support.zoo import ignored_row, unevenly_ignored

CLASSES = 12
FIRST_TOKEN = 3  # those below it are special


def tokens(generator: torch.Generator, length: int = SEQUENCE) -> torch.Tensor:
    return torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, length), generator=generator)


def text(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A decoder's batch: what is predicted is the next token."""
    ids = tokens(generator)
    return {"input_ids": ids, "labels": unevenly_ignored(ids)}


def masked_text(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """An encoder's batch: labels of their own, and padding at the end of some rows."""
    ids, labels = tokens(generator), unevenly_ignored(tokens(generator))
    lengths = SEQUENCE - torch.arange(BATCH) % 4
    mask = (torch.arange(SEQUENCE)[None, :] < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def two_texts(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """An encoder-decoder's batch: the decoder's inputs are made from the labels."""
    return {"input_ids": tokens(generator, SEQUENCE + 4), "labels": unevenly_ignored(tokens(generator))}


def images(generator: torch.Generator, size: int = 32) -> dict[str, torch.Tensor]:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"pixel_values": torch.randn(BATCH, 3, size, size, generator=generator), "labels": ignored_row(classes)}
