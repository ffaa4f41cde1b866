"""Linear algebra on each row of the batch's matrix, and strides: planned as it is called, equal to one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.errors import TraceError
from autoplan.options import Parallelism
from autoplan.trace.pipeline import trace
from tests.support.planning import parallelize_alone

ROWS, N = 8, 4
L = torch.linalg
HANN, TIMES = torch.hann_window(8), torch.tensor([1, 2, 0, 3])
Function = Callable[[Tensor], Tensor]


def definite(h: Tensor) -> Tensor:
    return h @ h.mT + N * torch.eye(N)


def regular(h: Tensor) -> Tensor:
    return h + N * torch.eye(N)


def of_svd(h: Tensor) -> Tensor:
    u, s, v = L.svd(h[..., :3], full_matrices=False)
    return (u * s[:, None]) @ v + u.square().mean() + s.sum()


def of_eigh(h: Tensor) -> Tensor:
    values, vectors = L.eigh(definite(h))
    return vectors.square() * values.log()[:, None]


CALLS: dict[str, Function] = {
    "svd": of_svd, "eigh": of_eigh, "qr": lambda h: L.qr(regular(h))[1].abs(), "inv": lambda h: L.inv(regular(h)),
    "cholesky": lambda h: L.cholesky(definite(h)) + torch.cholesky_inverse(L.cholesky(definite(h))),
    "solve": lambda h: L.solve(regular(h), h) + L.solve(regular(h[:1]), h, left=False),
    "solve a vector": lambda h: L.solve(regular(h), h[..., 0]), "det": lambda h: L.det(regular(h)),
    "slogdet": lambda h: L.slogdet(regular(h))[1] * torch.logdet(definite(h)), "lu": lambda h: L.lu(regular(h))[2],
    "triangular": lambda h: L.solve_triangular(regular(h).triu(), h, upper=True),
    "cholesky_solve": lambda h: torch.cholesky_solve(h, L.cholesky(definite(h))), "pinv": lambda h: L.pinv(h[..., :3]),
    "values": lambda h: L.eigvalsh(definite(h)) + L.svdvals(h) + L.eigvals(h).abs(), "exp": L.matrix_exp,
    "norms": lambda h: L.matrix_norm(h, "nuc") + L.cond(regular(h)), "power": lambda h: L.matrix_power(regular(h), -2),
    "strided rows": lambda h: torch.as_strided(h, (ROWS, 3, 6), (N * N, 5, 1)),
    "strided all": lambda h: torch.as_strided(h, (3, 5), (7, 2), 1),
    "stft": lambda h: torch.stft(h.flatten(1), 8, 2, window=torch.hann_window(8), return_complex=True).abs(),
    "istft": lambda h: torch.istft(torch.stft(h.flatten(1), 8, 2, window=HANN, return_complex=True), 8, 2, window=HANN),
    "pdist": lambda h: F.pdist(h.flatten(1)), "entries": lambda h: h.repeat_interleave(TIMES, 1, output_size=6),
    "conjugate": lambda h: (torch.fft.fft(h).conj() * torch.fft.fft(h.mT)).imag,
}  # fmt: skip


class Called(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.layer, self.names = nn.Linear(N, N), names

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return sum((CALLS[name](h).square().mean() for name in self.names), torch.zeros(()))


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(ROWS, N, N, generator=torch.Generator().manual_seed(0))}


@pytest.mark.usefixtures("verified_in_pool")
@pytest.mark.parametrize("names", [tuple(CALLS)[i::4] for i in range(4)], ids=lambda names: ",".join(names))
def test_rows_of_matrices_split(names: tuple[str, ...]) -> None:
    plan = parallelize_alone(Called(names), "1x2 cpu", batch(), parallelism=Parallelism(dp=2, tp=1, pp=1))
    assert plan.verify(batch=batch()).passed


def test_a_decomposition_is_run_once_for_all_of_its_results() -> None:
    traced = trace(Called(("svd", "eigh")), batch(), training=True)
    assert [n.args[1] for b in traced.blocks for n in b.nodes if n.op == "autoplan.decomposed"] == ["svd", "eigh"]


class Walked(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(N, N), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).square().mean()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda h: torch.as_strided(h.mT, (2, 2), (1, 4)), "doesn't lie contiguously"),
        (lambda h: L.qr(h, mode="r")[1], "no gradient"),
        (lambda h: L.lstsq(h, h).solution, r"its rank and residuals follow from values\. write .*pinv"),
        (lambda h: L.lu_solve(*L.lu_factor(h), h), r"lu_factor in module 'layer': .* pivots.*solve by torch\.linalg"),
        (lambda h: h.repeat_interleave(TIMES, 1), r"repeat_interleave.* depends on a tensor's values.*output_size="),
        (lambda h: L.eigh(torch.complex(definite(h), h - h.mT))[1].abs(), "real values beside complex vectors"),
    ],
)
def test_what_no_graph_can_hold_of_it_is_told(function: Function, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace(Walked(function), batch(), training=True)
