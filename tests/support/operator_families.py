"""Operators as models call them, by family: each a function of hidden rows [b, 6, 16] or pictures [b, 4, 8, 8].

Rows of the batch stay apart, so that every result is one of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Function = Callable[[Tensor], Tensor]
ROWS, LENGTH, WIDTH = 8, 6, 16


def of_torch(names: str, inside: Function = lambda h: h) -> dict[str, Function]:
    return {name: lambda h, name=name: getattr(torch, name)(inside(h)) for name in names.split()}  # type: ignore[misc]


def of_functional(names: str) -> dict[str, Function]:
    return {f"F.{name}": lambda h, name=name: getattr(F, name)(h) for name in names.split()}  # type: ignore[misc]


def along(names: str, dim: int) -> dict[str, Function]:
    return {f"{n}({dim})": lambda h, n=n: getattr(torch, n)(h, dim) for n in names.split()}  # type: ignore[misc]


def positive(h: Tensor) -> Tensor:
    return h.abs() + 1.5


def whole_numbers(h: Tensor) -> Tensor:
    return (h.detach() * 100).long()


def places(h: Tensor, size: int) -> Tensor:
    return whole_numbers(h).abs() % size


def assigned(h: Tensor) -> Tensor:
    y = torch.zeros_like(h)
    y[:, 1:] = h[:, :-1]
    y[:, 0] += 1.0
    y[..., ::2] = h[..., 1::2]
    y[h > 1] = 0.5
    return y.mul_(2).clamp_(-1, 1)


def rotated(h: Tensor) -> Tensor:
    """Rotary positions as Llama's first code wrote them, by complex numbers."""
    angles = torch.outer(torch.arange(LENGTH), 1.0 / torch.arange(1.0, 9.0))
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(h.unflatten(-1, (8, 2))) * turn).flatten(-2)


def without_gradient(h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h.abs().amax(-1, keepdim=True) + 1
    return h / scale


def in_autocast(h: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return h.float().softmax(-1)


ACTIVATIONS = of_functional(
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus "
    "softshrink softsign tanhshrink glu"
) | {
    "threshold": lambda h: F.threshold(h, 0.1, 0.2),
    "prelu": lambda h: F.prelu(h.transpose(1, 2), torch.full((WIDTH,), 0.25)),
    "softmax": lambda h: F.softmax(h, 1),
    "softmin": lambda h: F.softmin(h, -1),
}
UNARY = (
    of_torch(
        "abs angle atan asinh cos cosh ceil deg2rad erf erfc exp exp2 expm1 floor frac nan_to_num negative positive "
        "rad2deg round sgn sigmoid sign sin sinc sinh square tanh trunc"
    )
    | of_torch("digamma lgamma log log10 log1p log2 logit reciprocal rsqrt sqrt", lambda h: positive(h) / 9 + 0)
    | {
        "i0": torch.i0,
        "acosh": lambda h: torch.acosh(positive(h)),
        "asin": lambda h: torch.asin(torch.tanh(h) / 2),
        "erfinv": lambda h: torch.erfinv(torch.tanh(h) / 2),
        "polygamma": lambda h: torch.polygamma(1, positive(h)),
    }
)
BINARY: Mapping[str, Function] = {
    "atan2": lambda h: torch.atan2(h, h + 3),
    "hypot": lambda h: torch.hypot(h, h + 3),
    "fmod": lambda h: torch.fmod(h, 0.7),
    "remainder": lambda h: torch.remainder(h, 0.7),
    "lerp": lambda h: torch.lerp(h, h * 2, 0.3) + torch.lerp(h, h * 2, torch.sigmoid(h)),
    "addcmul": lambda h: torch.addcmul(h, h, h, value=2),
    "addcdiv": lambda h: torch.addcdiv(h, h, positive(h), value=2),
    "fmax": lambda h: torch.fmax(h, h * 2) + torch.fmin(h, h * 3),
    "clamp": lambda h: torch.clamp(h, min=h * 0.5, max=h * 0 + 0.3) + h.clip(-1, 1),
    "xlogy": lambda h: torch.xlogy(h, positive(h)),
    "logaddexp": lambda h: torch.logaddexp(h, h * 2) + torch.logaddexp2(h, h * 2),
    "copysign": lambda h: torch.copysign(h, h * 2),
    "pow": lambda h: positive(h) ** h + 2**h + torch.float_power(h, 2),
    "division": lambda h: h.detach() // 0.3 + torch.div(h, 0.3, rounding_mode="trunc") + 1 / positive(h),
    "where": lambda h: torch.where(h > 0, h, h * 2) + torch.where(h > 0, h, 0.5) + h.masked_fill(h > 0, 1.0),
    "logic": lambda h: h * (~(h > 0) | ((h > 0) ^ (h < 1))) + h * torch.isfinite(h) * torch.isclose(h, h + 1),
    "bits": lambda h: h * (((whole_numbers(h) & 3) | (whole_numbers(h) << 1)) ^ 5) / 100 + h * (whole_numbers(h) >> 2),
    "whole": lambda h: h * torch.gcd(whole_numbers(h), whole_numbers(h) + 4) + torch.ldexp(h, places(h, 3)),
    "casts": lambda h: h.float().to(h.dtype) + h.int() + h.bool() + h.double().type_as(h),
    "losses": lambda h: F.smooth_l1_loss(h, h.detach() / 2, reduction="none") + F.normalize(h, dim=-1),
    "distances": lambda h: F.cosine_similarity(h, h + 1, dim=-1) + F.pairwise_distance(h, h + 1),
    "cdist": lambda h: torch.cdist(h, h + 1),
    "no_grad": without_gradient,
    "autocast": in_autocast,
}
REDUCTIONS = along("sum mean amax amin var std logsumexp prod nansum argmax argmin", 1) | {
    "max": lambda h: h.max(1).values + h.max(1).indices + h.min(1)[0],
    "median": lambda h: h.median(1).values + h.kthvalue(3, 1)[0],
    "var_mean": lambda h: torch.var_mean(h, -1)[0] + torch.var_mean(h, -1)[1] + torch.std_mean(h, -1)[0],
    "aminmax": lambda h: torch.aminmax(h, dim=1)[0] + torch.aminmax(h, dim=1).max,
    "any": lambda h: h.sum(-1) * (h > 0).any(-1) * (h > -9).all(-1) * torch.count_nonzero(h, -1),
    "norms": lambda h: h.norm(p=1, dim=-1) + h.norm(dim=-1) + torch.linalg.norm(h, float("inf"), -1),
    "vector_norm": lambda h: torch.linalg.vector_norm(h, 3, (1, 2)) + torch.linalg.matrix_norm(h),
    "quantile": lambda h: torch.quantile(h, 0.4, 1),
}
SCANS = (
    along("cumsum cumprod logcumsumexp", 1)
    | along("cumsum cumprod logcumsumexp", 2)
    | {
        "cummax": lambda h: h.cummax(1)[0] + h.cummin(2).values,
        "sort": lambda h: h.sort(1)[0] + h.sort(1)[1] + torch.sort(h, stable=True, dim=-1)[0],
        "argsort": lambda h: h * h.argsort(1, descending=True),
        "topk": lambda h: h.topk(3, -1)[0] * h.topk(3, -1)[1],
        "diff": lambda h: torch.diff(h, dim=1),
        "bucketize": lambda h: h * torch.bucketize(h.detach(), torch.arange(4.0)),
    }
)
PRODUCTS: Mapping[str, Function] = {
    "bmm": lambda h: torch.bmm(h, h.transpose(1, 2)),
    "baddbmm": lambda h: torch.baddbmm(h @ h.mT, h, h.mT, beta=0.5, alpha=2),
    "outer": lambda h: h + torch.outer(torch.arange(6.0), torch.arange(16.0)),
    "cross": lambda h: torch.linalg.cross(h[..., :3], h[..., 3:6]),
    "einsum": lambda h: torch.einsum("bsd,btd->bst", h, h),
    "einsum of heads": lambda h: torch.einsum("bshd,bthd->bhst", h.unflatten(-1, (4, 4)), h.unflatten(-1, (4, 4))),
    "einsum with dots": lambda h: torch.einsum("...sd,...sd", h, h),
    "einsum of three": lambda h: torch.einsum("bi,bj,bk->bijk", h[:, 0], h[:, 1], h[:, 2]),
    "einsum of a diagonal": lambda h: torch.einsum("bii->bi", h[:, :, :6]),
    "bilinear": lambda h: F.bilinear(h, h, torch.ones(4, WIDTH, WIDTH)),
    "matrix_power": lambda h: torch.matrix_power(h[:, :, :6], 2),
    "triangles": lambda h: h.tril() + torch.triu(h, 1),
    "diagonal": lambda h: h.diagonal(dim1=1, dim2=2),
    "diag_embed": lambda h: torch.diag_embed(h),
}
WINDOWS: Mapping[str, Function] = {
    f"{kind}_pool{n}d": lambda x, kind=kind, n=n: getattr(F, f"{kind}_pool{n}d")(spread(x, n), 2)  # type: ignore[misc]
    for kind in ("max", "avg", "adaptive_max", "adaptive_avg")
    for n in (1, 2, 3)
} | {
    "conv1d": lambda x: F.conv1d(x.flatten(2), kernel(8, 4, 3), padding=1),
    "conv2d": lambda x: F.conv2d(x, kernel(8, 4, 3, 3), stride=2, padding=1),
    "conv3d": lambda x: F.conv3d(x.unsqueeze(2), kernel(8, 4, 1, 3, 3)),
    "depthwise": lambda x: F.conv2d(x, kernel(4, 1, 3, 3), groups=4, padding="same"),
    "transposed": lambda x: F.conv_transpose2d(x, kernel(4, 8, 2, 2), stride=2),
    "transposed1d": lambda x: F.conv_transpose1d(x.flatten(2), kernel(4, 8, 3)),
    "overlapping pools": lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1),
    "odd pools": lambda x: F.adaptive_max_pool2d(x, 3) + F.adaptive_avg_pool2d(x, 3),
    "lp_pool": lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 2),
    "norms": lambda x: F.instance_norm(x) + F.group_norm(x, 2) + F.local_response_norm(x, 2),
}
SPACE: Mapping[str, Function] = {
    f"interpolate {mode}": lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)  # type: ignore[misc]
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
} | {
    "smaller": lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
    "pad": lambda x: F.pad(x, (1, 1, 2, 0)) + F.pad(x, (2, 0, 1, 1), mode="reflect"),
    "pad more": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate") + F.pad(x, (1, 1, 1, 1), mode="circular"),
    "crop": lambda x: F.pad(x, (-1, 1)),
    "pixel_shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 4),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3),
    "fold": lambda x: F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2),
    "windows": lambda x: x.unfold(-1, 3, 2),
    "grid_sample": lambda x: F.grid_sample(x, torch.zeros(ROWS, 4, 4, 2) + 0.1, align_corners=False),
    "roll": lambda x: x.roll((1, 2), (2, 3)) + x.flip(-1) + x.rot90(1, (2, 3)),
    "dims": lambda x: x.movedim(1, -1).swapaxes(2, 3),
}
INDEXING: Mapping[str, Function] = {
    "gather": lambda h: h.gather(1, places(h, LENGTH)) + torch.take_along_dim(h, places(h, LENGTH), 1),
    "scatter": lambda h: h.scatter(1, places(h[:, :1], LENGTH), h[:, :1]) + h.scatter(1, places(h[:, :3], LENGTH), 1.5),
    "scatter_add": lambda h: h.scatter_add(1, places(h, LENGTH), h * 2),
    "scatter_reduce": lambda h: h.scatter_reduce(1, places(h, LENGTH), h * 2, "amax"),
    "index": lambda h: h[:, torch.arange(3)] + h.index_select(1, torch.arange(3)),
    "index_add": lambda h: h.index_add(1, torch.arange(3), h[:, :3]),
    "index_fill": lambda h: h.index_fill(1, torch.arange(3), 2.0),
    "index_copy": lambda h: h.index_copy(1, torch.arange(3), h[:, 3:]),
    "one_hot": lambda h: F.one_hot(places(h[..., 0], 6), 6) * h[..., :6],
    "stacks": lambda h: torch.hstack([h, h]) + torch.dstack([h, h])[..., 16:].repeat(1, 2, 1) + torch.cat([h, h], 1),
    "splits": lambda h: sum(h.split(2, 1)) + sum(h.tensor_split(3, 1)) + sum(h.chunk(3, 1)),  # type: ignore[return-value]
    "repeats": lambda h: h.tile(2) + h.repeat(1, 1, 2) + h.repeat_interleave(2, -1),
    "in place": assigned,
    "steps": lambda h: h[:, ::2] + h[:, 1::2].flip(1),
    "meshgrid": lambda h: h + torch.meshgrid(torch.arange(6.0), torch.arange(16.0), indexing="ij")[1],
    "tril_indices": lambda h: h[:, torch.tril_indices(6, 6)[0]],
}
SPECTRA: Mapping[str, Function] = {
    "rope": rotated,
    "fft": lambda h: torch.fft.fft(h, dim=1).real + torch.fft.fftn(h, dim=(1, 2)).real,
    "rfft": lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=1) * 2j, n=LENGTH, dim=1),
    "complex": lambda h: torch.complex(h, h + 1).abs(),
    "factories": lambda h: h * torch.linspace(0, 1, WIDTH) + torch.eye(6, WIDTH) + torch.hann_window(WIDTH),
    "full": lambda h: h * torch.full((WIDTH,), 2.0) * torch.ones_like(h) + torch.empty_like(h).fill_(2.0),
    "numbers": lambda h: h * torch.tensor(2.0) + torch.tensor([0.5, 1.5] * 8),
}
PENALTIES: Mapping[str, Function] = {
    f"{name} {way}": lambda h, name=name, way=way: getattr(F, name)(h, h.detach() * 0.5, reduction=way)  # type: ignore[misc]
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss")
    for way in ("mean", "sum")
} | {
    "cross_entropy": lambda h: F.cross_entropy(h.flatten(0, 1), classes(h).flatten()),
    "of pictures": lambda h: F.cross_entropy(h.transpose(1, 2), classes(h)),
    "soft": lambda h: F.cross_entropy(h.transpose(1, 2), h.detach().softmax(-1).transpose(1, 2), label_smoothing=0.1),
    "of each": lambda h: F.cross_entropy(h.flatten(0, 1), classes(h).flatten(), reduction="none").mean(),
    "nll_loss": lambda h: F.nll_loss(h.flatten(0, 1), classes(h).flatten()),
    "bce": lambda h: F.binary_cross_entropy(h.sigmoid(), h.detach().sigmoid()),
    "bce with logits": lambda h: F.binary_cross_entropy_with_logits(
        h, h.detach().sigmoid(), pos_weight=torch.ones(16) * 2
    ),
    "kl_div": lambda h: F.kl_div(h.log_softmax(-1), h.detach().softmax(-1), reduction="sum"),
    "hinge": lambda h: F.hinge_embedding_loss(h, h.detach().sign()) + F.soft_margin_loss(h, h.detach().sign()),
    "margins": lambda h: F.margin_ranking_loss(h, h * 2, h.detach().sign()) + F.triplet_margin_loss(h, h * 2, h + 1),
}


def spread(x: Tensor, dims: int) -> Tensor:
    return {1: x.flatten(2), 2: x, 3: x.unflatten(-1, (4, 2))}[dims]


def kernel(*shape: int) -> Tensor:
    count = torch.arange(float(torch.Size(shape).numel()))
    return torch.sin(count).reshape(shape)


def classes(h: Tensor) -> Tensor:
    return torch.where(h[:, :, 0] > 1, -100, places(h[:, :, 0], WIDTH))


OF_ROWS: Mapping[str, Mapping[str, Function]] = {
    "activations": ACTIVATIONS, "unary": UNARY, "binary": BINARY, "reductions": REDUCTIONS, "scans": SCANS,
    "products": PRODUCTS, "indexing": INDEXING, "spectra": SPECTRA, "penalties": PENALTIES,
}  # fmt: skip
OF_PICTURES: Mapping[str, Mapping[str, Function]] = {"windows": WINDOWS, "space": SPACE}
FAMILIES = (*OF_ROWS, *OF_PICTURES)


class Family(nn.Module):
    """All functions of a family, of one layer's result; the loss is their mean."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.functions = list((OF_ROWS | OF_PICTURES)[name].values())  # type: ignore[operator]
        self.layer = nn.Linear(WIDTH, WIDTH) if name in OF_ROWS else nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        loss = h.square().mean()
        for function in self.functions:
            y = function(h)
            loss = loss + (y if y.ndim == 0 else torch.tanh(y.to(h.dtype)).mean())
        return loss


def batch(name: str) -> dict[str, Tensor]:
    shape = (ROWS, LENGTH, WIDTH) if name in OF_ROWS else (ROWS, 4, 8, 8)
    return {"x": torch.randn(shape, generator=torch.Generator().manual_seed(5))}
