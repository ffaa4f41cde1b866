"""What every test runs under: one thread, and no deadline on an example, since the machine may be busy."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("autoplan", deadline=None)
settings.load_profile("autoplan")
