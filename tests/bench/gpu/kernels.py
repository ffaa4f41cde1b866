"""Kernels whose figures stand in docstrings and prices: grouped queries in float32, and what PowerSGD runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from autoplan.runtime.ops.attention.heads import grouped_query_attention
from autoplan.runtime.parallel.compression.powersgd import orthonormal
from tests.bench.gpu.clock import peak_bytes, seconds
from tests.bench.gpu.measured import GB
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

ROUNDS = 10


def run(setting: Setting) -> Result:
    rows = []
    for name, make in cases(setting).items():
        most = peak_bytes(make, setting.on)
        act = make()
        act()
        rows.append((name, f"{seconds(act, setting.on, ROUNDS) * 1e3:.3f}", f"{most / GB:.3f}"))
        print(*rows[-1], sep=" | ", flush=True)
    told = "Medians of ten runs, and bytes of tensors at most, what they are given included."
    return Result("Kernels", told, ("kernels", "ms", "peak, GB"), tuple(rows))


def cases(setting: Setting) -> dict[str, Callable[[], Callable[[], object]]]:
    """What makes the tensors of each, and gives what runs it."""
    size, device = setting.size, setting.on
    plain = functional.scaled_dot_product_attention
    wide, few = (256, 2) if setting.small else (4096, 224)

    def attention(attend: Callable) -> Callable[[], object]:
        head = size.hidden // size.heads
        shapes = [(size.rows, heads, size.length, head) for heads in (size.heads, size.heads // 2, size.heads // 2)]
        q, k, v = (torch.randn(shape, device=device, requires_grad=True) for shape in shapes)

        def act() -> object:
            out = attend(q, k, v, is_causal=True, enable_gqa=True)
            return torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

        return act

    def columns(count: int) -> Callable[[], object]:
        given = torch.randn(count, wide, 4, device=device)
        return lambda: orthonormal(given.clone())

    def products(rank: int) -> Callable[[], object]:
        gradient, error = (torch.randn(wide, wide, device=device) for _ in range(2))
        left, right = (torch.randn(wide, rank, device=device) for _ in range(2))

        def act() -> object:
            error.add_(gradient)
            made = error @ right, error.T @ left
            error.addmm_(left, right.T, alpha=-1)
            torch.mm(left, right.T, out=gradient)
            return made

        return act

    return {
        "grouped queries, float32": lambda: attention(plain),
        "the same, keys repeated": lambda: attention(grouped_query_attention),
        **{f"orthonormalisation of {n}, rank 4": lambda n=n: columns(n) for n in (1, few)},
        **{f"a matrix's products, rank {r}": lambda r=r: products(r) for r in (4, 16)},
    }
