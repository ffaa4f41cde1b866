"""Seconds to plan Llama-3-70B for 64 devices, tracing included: ``make bench-plan``."""

from __future__ import annotations

import time

import torch

import autoplan
from autoplan.models.named import resolve_model

torch.set_num_threads(1)
request = resolve_model("hf:llama-3-70b", batch=512, seq=8192)
start = time.perf_counter()
plan = autoplan.parallelize(
    request.model,
    "8x8 h100-sxm",
    request.example_inputs,
    training=autoplan.Training(precision="bf16-mixed"),
)
seconds = time.perf_counter() - start
print(f"{seconds:.1f} s: {plan}")
for phase, spent in plan.search.seconds:
    print(f"  {phase:<20} {spent:6.2f} s")
