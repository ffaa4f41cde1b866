"""What every test runs under: one thread, and no limit on how long an example takes, since the machine may be busy."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("autoplan", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("autoplan")
