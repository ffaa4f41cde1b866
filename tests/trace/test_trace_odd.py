"""Legal PyTorch that no trace can hold: one error with the user's line or tensor, never a traceback from inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.errors import AutoplanError, InputsError, NoRuleError, TraceError
from autoplan.options import Parallelism
from autoplan.trace.initialise import given
from autoplan.trace.pipeline import trace
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Chosen(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.where(x.sum(1) >= 0)[0]  # the line
        return super().forward(x)[rows].sum(0, keepdim=True).expand(8, 16)


class Repeated(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, times = super().forward(x), (x[:, 0] > 0).long()
        return torch.repeat_interleave(y, times, dim=0).mean(0).expand(8, 16)  # the line


class Rounded(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(super().forward(x), 0.1, 0, -128, 127)  # the line


class Branched(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, super().forward, lambda y: y * 2, (x,))  # the line


class Registering(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.full((16,), 0.5))
        return super().forward(x * self.scale)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (Chosen, TraceError, r"py:\d+: rows = torch.where.*: aten.where.default in .* depends on a tensor's values"),
        (Repeated, TraceError, r"# the line: aten.repeat_interleave.self_Tensor in .* depends on a tensor's values"),
        (Rounded, NoRuleError, r"^aten.fake_quantize\w+.default in .* torch can't say what .*\(.*# the line\)"),
        slow((Branched, TraceError, r"# the line: cond in module .* runs a graph of its own")),
        (Registering, TraceError, r"^scale: forward registers this buffer"),
    ],
)
def test_what_no_graph_holds_is_told_with_the_line(kind: type, error: type[AutoplanError], said: str) -> None:
    with pytest.raises(error, match=said):
        trace(kind(16, 16), (X, X), loss_fn=F.mse_loss, training=True)


def with_sparse(kind: Callable, place: Callable[[nn.Module, torch.Tensor], None]) -> nn.Module:
    model = nn.Linear(8, 8)
    place(model, kind(torch.eye(8)))
    return model


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: with_sparse(torch.Tensor.to_sparse, lambda m, a: m.register_buffer("adj", a)), TraceError, "^adj: "),
        (lambda: with_sparse(torch.Tensor.to_sparse_csr, lambda m, a: setattr(m, "adj", a)), TraceError, "sparse_csr"),
        (lambda: nn.LazyLinear(8), InputsError, "^weight: it is lazy"),
    ],
    ids=["buffer", "attribute", "lazy"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_that_no_program_holds_are_told_before_they_are_read(
    make: Callable[[], nn.Module], error: type[AutoplanError], said: str
) -> None:
    for model in (make(), make):  # an instance, and a function that makes one
        with pytest.raises(error, match=said):
            given(model)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator (Li et al. 2021), with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(5, 16, 16, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = torch.zeros(*x.shape[:2], 9, 16, dtype=torch.complex64)[:, 0]
        modes[:, :5] = torch.einsum("bki,kio->bko", torch.fft.rfft(x, dim=1)[:, :5], self.weight)
        return torch.fft.irfft(modes, n=16, dim=1)


@pytest.mark.usefixtures("verified_in_pool")
def test_complex_weights_train_as_on_one_device() -> None:
    batch = tuple(torch.randn(8, 16, 16) for _ in range(2))
    pins = Parallelism(dp=2, tp=1, pp=1)
    plan = parallelize_alone(Spectral(), "1x2 cpu", batch, loss_fn=F.mse_loss, parallelism=pins)
    assert plan.verify().passed


class Sparse(nn.Module):
    """Tables whose gradients are asked for as sparse ones, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bag = nn.Embedding(32, 8, sparse=True), nn.EmbeddingBag(32, 8, sparse=True, mode="sum")
        self.kept, self.head = nn.Embedding(32, 8, sparse=True).requires_grad_(False), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = (self.words(tokens) + self.kept(tokens)).mean(1) + self.bag(tokens)
        return F.cross_entropy(self.head(found), labels)


@pytest.mark.usefixtures("verified_in_pool")
def test_gradients_that_are_asked_for_as_sparse_are_dense_and_the_report_says_so() -> None:
    batch = {"tokens": torch.randint(32, (8, 4)), "labels": torch.randint(4, (8,))}
    plan = parallelize_alone(Sparse(), "1x2 cpu", batch, parallelism=Parallelism(dp=2, tp=1, pp=1))
    (note,) = plan.record.model.notes
    assert note.startswith("gradients of words.weight, bag.weight are dense, where sparse=True asks for sparse ones")
    assert "momentum or weight decay moves rows" in note and note in " ".join(plan.report(verbose=True).split())
    assert plan.verify().passed, "one device's sparse gradients are held to a program's dense ones"
