"""On which device the parts run, at which size, and where they leave their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

from autoplan import ClusterSpec
from tests.bench.pairs.models import MODELS, Size

SMALL = Size(hidden=32, layers=2, vocabulary=128, rows=4, length=32)
WHOLE = Size(hidden=2048, layers=8, vocabulary=32_000, rows=8, length=2048, heads=16)
NAMED = {"cuda": "h100-sxm", "cpu": "cpu"}  # profiles that plans are made by before this device's own is measured
PROFILE, DEVICE = "profile.toml", "device.txt"


@dataclass(frozen=True)
class Setting:
    """Of one run of the parts.

    device  "cuda", "cpu", another of torch's accelerators
    small   sizes and counts at which a CPU takes seconds
    folder  where parts leave what they write: profile.toml, which ``calibrated`` makes and ``predicted`` reads, traces
    """

    device: str
    small: bool
    folder: Path

    @property
    def size(self) -> Size:
        return SMALL if self.small else WHOLE

    @property
    def on(self) -> torch.device:
        return torch.device(self.device)

    def note_device(self) -> None:
        """Leaves the device's name, torch's version and the date in the folder."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        text = f"Measured on {date.today():%Y-%m-%d} on one {name}, torch {torch.__version__}.\n"
        (self.folder / DEVICE).write_text(text)

    def measured_on(self) -> str:
        """What ``note_device`` left."""
        return (self.folder / DEVICE).read_text()

    @property
    def known(self) -> str:
        return NAMED.get(self.device, self.device)

    @property
    def priced_by(self) -> str:
        return "the measured profile" if (self.folder / PROFILE).exists() else f"the profile {self.known} that ships"

    def cluster(self, ranks: int = 1) -> ClusterSpec:
        """One node, by the measured profile where there is one."""
        profile = self.folder / PROFILE
        return ClusterSpec(1, ranks, str(profile) if profile.exists() else self.known)

    def module(self, name: str, size: Size | None = None, dropout: bool = False) -> nn.Module:
        """On the CPU, with the same values each time."""
        torch.manual_seed(0)
        module = MODELS[name](size or self.size).train()
        for each in module.modules() if not dropout else ():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        return module

    def batch(self, size: Size | None = None) -> Mapping[str, Tensor]:
        """In the host's memory."""
        size = size or self.size
        ids = torch.randint(0, size.vocabulary, (size.rows, size.length), generator=torch.Generator().manual_seed(1))
        return {"input_ids": ids, "labels": ids.clone()}
