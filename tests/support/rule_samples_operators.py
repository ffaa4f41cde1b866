"""Samples of the rules of scans, orders, scatters, windows, spectra, einsum, and of the longer tables."""

from __future__ import annotations

import torch
from torch import Tensor

from autoplan.rules.check.case import Sample
from tests.support.rule_operands import GENERATOR, bits, c, ints, positive, s, x


def element_samples() -> list[Sample]:
    """x(4, 4): a rule of one table, so one call of each."""
    plain = "angle asinh atan celu cosh deg2rad erfc exp2 expm1 frac hardshrink i0 log_sigmoid nan_to_num rad2deg relu6"
    special = "special_erfcx special_i1 special_i0e special_i1e"
    found = [s(f"aten.{name}.default", x(4, 4)) for name in f"{plain} selu sinc sinh softshrink tan {special}".split()]
    found += [s(f"aten.{name}.default", small(4, 4)) for name in "acos asin atanh erfinv".split()]
    found += [s("aten.special_ndtri.default", positive(4, 4).detach().frac().clamp(0.1, 0.9).requires_grad_())]
    found += [s(f"aten.special_bessel_j{order}.default", c(4, 4)) for order in (0, 1)]
    found += [s("aten.special_zeta.default", 2 + positive(4, 4).detach(), positive(4))]
    found += [s(f"aten.{name}.default", positive(4, 4).detach(), positive(4)) for name in ("igamma", "igammac")]
    found += [s("aten.acosh.default", (1 + c(4, 4).abs()).requires_grad_())]
    found += [s(f"aten.{name}.default", positive(4, 4)) for name in "digamma lgamma log10 log2".split()]
    found += [s(f"aten.{name}.default", c(4, 4)) for name in "ceil round trunc sgn signbit".split()]
    found += [s(f"aten.{n}.default", x(4, 4), x(4)) for n in "atan2 fmax fmin hypot logaddexp logaddexp2".split()]
    found += [s(f"aten.{name}.default", c(4, 4), c(4)) for name in ("heaviside", "nextafter")]
    found += [s(f"aten.{name}.default", ints(9, 4, 4), 1 + ints(9, 4)) for name in ("gcd", "lcm")]
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        found += [s(f"aten.{name}.Tensor", ints(9, 4, 4), ints(3, 4)), s(f"aten.{name}.Tensor_Scalar", ints(9, 4), 1)]
    for name in ("__lshift__", "__rshift__"):
        found += [s(f"aten.{name}.Tensor", ints(9, 4, 4), ints(3, 4)), s(f"aten.{name}.Scalar", ints(9, 4), 1)]
    found += [s("aten.threshold.default", x(4, 4), 0.1, 0.5), s("aten.polygamma.default", 1, positive(4, 4))]
    found += [s("aten.copysign.Tensor", x(4, 4), c(4)), s("aten.copysign.Scalar", x(4, 4), -1.0)]
    found += [s("aten.fmod.Scalar", x(4, 4), 0.7), s("aten.fmod.Tensor", x(4, 4), positive(4).detach())]
    found += [s("aten.ldexp.Tensor", x(4, 4), ints(3, 4)), s("aten.xlogy.Tensor", x(4, 4), positive(4))]
    found += [s("aten.lerp.Scalar", x(4, 4), x(4), 0.3), s("aten.lerp.Tensor", x(4, 4), x(4), small(4, 4))]
    found += [s("aten.clamp.Tensor", x(4, 4), x(4), None), s("aten.clamp.Tensor", x(4, 4), c(4) - 2, max=c(4, 1) + 2)]
    found += [s("aten.clamp_min.Tensor", x(4, 4), x(4)), s("aten.clamp_max.Tensor", x(4, 4), x(4))]
    found += [s("aten._prelu_kernel.default", x(4, 4), x(4, 1))]
    return [*found, *penalty_samples()]


def small(*shape: int) -> Tensor:
    return (0.9 * torch.tanh(c(*shape))).requires_grad_()


def penalty_samples() -> list[Sample]:
    shares = torch.sigmoid(c(4, 8))
    found = [s("aten.smooth_l1_loss.default", x(4, 8), x(4, 8), 0, 0.5)]
    found += [s("aten.huber_loss.default", x(4, 8), c(4, 8), 0, 0.5)]
    found += [s("aten.binary_cross_entropy.default", torch.sigmoid(c(4, 8)).requires_grad_(), shares, None, 0)]
    op = "aten.binary_cross_entropy_with_logits.default"
    return [*found, s(op, x(4, 8), shares, None, None, 0), s(op, x(4, 8), shares, c(8), positive(8).detach(), 0)]


def reducing_samples() -> list[Sample]:
    found = [s("aten.logsumexp.default", x(4, 8), (1,)), s("aten.prod.dim_int", x(4, 8), 1, True)]
    found += [s("aten.prod.default", x(4, 4)), s("aten.linalg_vector_norm.default", x(4, 8), 2, (1,), True)]
    found += [s("aten.linalg_vector_norm.default", x(4, 8), 1), s("aten.count_nonzero.default", ints(2, 4, 8))]
    found += [s("aten.count_nonzero.dim_IntList", ints(2, 4, 8), (0,)), s("aten.any.dims", bits(4, 4, 8), (0, 2))]
    found += [s("aten._cdist_forward.default", x(2, 4, 4), x(2, 6, 4), 2.0, None)]
    return [*found, s("aten.all.dims", bits(4, 8), (0,), True)]


def scan_samples() -> list[Sample]:
    found = [s("aten.cumsum.default", x(4, 8), 1), s("aten.cumsum.default", ints(9, 12, 2), 0)]
    found += [s("aten.cumprod.default", x(4, 8), 1), s("aten.logcumsumexp.default", x(12, 4), 0)]
    found += [s("autoplan.running_extreme", x(4, 8), 1, True), s("autoplan.running_extreme", x(4, 8), 1, False)]
    return found


def sorting_samples() -> list[Sample]:
    found = [s("aten.argsort.stable", c(4, 8), stable=True, dim=1, descending=True)]
    found += [
        s("aten.bucketize.Tensor", c(4, 8), torch.arange(5.0)),
        s("aten.searchsorted.Tensor", torch.arange(5.0), c(8)),
    ]
    found += [s("aten.histc.default", c(4, 8), 4), s("aten.histc.default", c(8), 4, -1, 1)]
    found += [s(f"aten.{name}_indices.default", 4, 4, 1) for name in ("tril", "triu")]
    return [*found, s("aten.searchsorted.Tensor", torch.arange(24.0).reshape(4, 6), 20 * c(4, 3), right=True)]


def scatter_samples() -> list[Sample]:
    order = torch.stack([torch.randperm(8, generator=GENERATOR) for _ in range(4)])
    found = [s("aten.scatter.src", x(4, 8), 1, order[:, :3], x(4, 3)), s("aten.scatter.value", x(4, 8), 1, order, 0.0)]
    found += [s("aten.scatter.value", x(4, 8), 1, order[:, :2], 1.5)]
    found += [s("aten.scatter_reduce.two", x(4, 8), 1, ints(8, 4, 6), x(4, 6), way) for way in ("sum", "mean", "amax")]
    found += [s("aten.index_put.default", x(8, 4), (torch.tensor([1, 5]),), x(2, 4))]
    found += [s("aten.index_put.default", x(4, 8, 2), (None, torch.tensor([1, 5])), x(4, 2, 2), True)]
    found += [s("aten.index_put.default", x(4, 8, 2), (torch.tensor([1, 3]), None, torch.tensor([0, 1])), x(2, 8))]
    found += [s("aten.slice_scatter.default", x(4, 8), x(4, 4), 1, 0, 8, 2)]
    found += [s("aten.masked_scatter.default", x(4, 4), bits(4, 4), x(16))]
    found += [s("aten.diagonal.default", x(4, 4, 8), 1, 1, 2), s("aten.unfold.default", x(4, 8), 1, 3, 2)]
    return found


def spectral_samples() -> list[Sample]:
    def pairs(*shape: int) -> Tensor:
        return torch.view_as_complex(c(*shape, 2)).requires_grad_()

    found = [s("aten.view_as_complex.default", x(4, 4, 2)), s("aten.view_as_real.default", pairs(4, 4))]
    found += [s("aten.complex.default", x(4, 4), x(4, 4)), s("aten.polar.default", positive(4, 4), x(4, 4))]
    found += [s(f"aten.{name}.default", pairs(4, 4)) for name in ("_conj_physical", "conj_physical")]
    found += [
        s("aten._fft_r2c.default", x(4, 8), (1,), 0, True),
        s("aten._fft_c2c.default", pairs(4, 4, 4), (1, 2), 0, True),
    ]
    found += [s("aten._fft_c2r.default", pairs(4, 5), (1,), 2, 8), s("aten.mul.Tensor", pairs(4, 4), pairs(4))]
    return found


def linalg_samples() -> list[Sample]:
    """Well-conditioned matrices, with singular values and eigenvalues apart."""
    far = torch.arange(1.0, 4.0).diag()
    regular, tall = c(4, 3, 3) + 5 * far, c(4, 6, 3)
    definite = regular @ regular.mT

    def of(op: str, *operands: Tensor, **said: object) -> Sample:
        return s(f"aten.{op}", *(operand.clone().requires_grad_() for operand in operands), **said)

    found = [of("linalg_inv.default", regular), of("linalg_inv.default", regular[0]), of("linalg_det.default", regular)]
    found += [of("linalg_cholesky.default", definite, upper=True), of("linalg_matrix_exp.default", c(2, 4, 3, 3) / 9)]
    found += [of("cholesky_inverse.default", torch.linalg.cholesky(definite)), of("linalg_pinv.atol_rtol_tensor", tall)]
    found += [of("linalg_svdvals.default", tall), of("linalg_eigvalsh.default", definite)]
    found += [of("linalg_eigvals.default", regular)]
    found += [of("linalg_householder_product.default", tall, c(4, 3)), of("linalg_solve.default", regular, c(4, 3, 8))]
    found += [of("cholesky_solve.default", c(4, 3, 8), torch.linalg.cholesky(definite))]
    for left, shape in ((True, (4, 3, 8)), (False, (4, 8, 3))):
        found += [of("linalg_solve_triangular.default", regular.triu(), c(*shape), upper=True, left=left)]
    options = {"svd": (False,), "qr": ("reduced",), "lu": (True,), "slogdet": (), "eigh": ("L",)}
    for kind, given in options.items():
        x = (tall if kind in ("svd", "qr") else definite).clone().requires_grad_()
        found.append(s("autoplan.decomposed", x, kind, *given))
    return found


def einsum_samples() -> list[Sample]:
    op = "aten.einsum.default"
    found = [s(op, "bsd,btd->bst", (x(4, 2, 4), x(4, 6, 4))), s(op, "bsd->bd", (x(4, 2, 8),))]
    found += [s(op, "bii->bi", (x(4, 4, 4),)), s(op, "ab,ab,b->a", (x(4, 8), x(1, 8), x(8)))]
    return [*found, s(op, "bi,bj->ij", (x(8, 4), c(8, 6)))]


def pooling_samples() -> list[Sample]:
    found = [
        s("aten.max_pool1d.default", x(4, 2, 8), (2,), (2,)),
        s("aten.avg_pool1d.default", x(2, 4, 8), (3,), (1,), (1,)),
    ]
    found += [s("aten.max_pool2d.default", x(2, 2, 8, 5), (3, 3), (2, 2), (1, 1), (1, 1), False)]
    found += [s("aten.max_pool2d.default", x(2, 2, 5, 8), (3, 3), (1, 1), (1, 1))]
    found += [s("aten.avg_pool2d.default", x(2, 2, 3, 8), (5, 5), (1, 1), (2, 2), False, True, None)]
    found += [s("aten.max_pool3d.default", x(2, 2, 3, 3, 12), (3, 3, 3), (1, 1, 1), (1, 1, 1))]
    found += [s("aten.avg_pool3d.default", x(2, 2, 4, 2, 2), (2, 2, 2), (2, 2, 2))]
    found += [s("aten.avg_pool3d.default", x(2, 2, 2, 4, 12), (1, 3, 3), (1, 1, 1), (0, 1, 1), False, True, None)]
    found += [s("aten.max_pool3d.default", x(2, 2, 2, 8, 2), (1, 2, 1), (1, 1, 1))]
    found += [s("autoplan.adaptive_avg_pool", x(4, 2, 5), (3,)), s("autoplan.adaptive_max_pool", x(2, 4, 5, 7), (3, 2))]
    return found


def halo_samples() -> list[Sample]:
    def conv(space: tuple[int, ...], kernel: tuple[int, ...], stride: int, padding: int, dilation: int = 1) -> Sample:
        same = tuple((n,) * len(space) for n in (stride, padding, dilation))
        w, zeros = x(2, 2, *kernel), (0,) * len(space)
        return s("aten.convolution.default", x(2, 2, *space), w, None, *same, False, zeros, 1)

    found = [conv((8,), (3,), 1, 1), conv((8,), (7,), 1, 3), conv((24,), (3,), 2, 1), conv((12,), (3,), 1, 2, 2)]
    found += [conv((8, 12), (3, 3), 1, 1), conv((8, 4), (4, 2), 1, 0), conv((8, 8), (2, 2), 2, 0)]
    spread = s("aten.convolution.default", x(2, 2, 4), x(2, 2, 3), None, (3,), (0,), (1,), True, (0,), 1)
    found += [s("aten.grid_sampler_2d.default", x(2, 2, 3, 3), small(2, 4, 2, 2), 0, 0, False)]
    found += [
        s("aten.grid_sampler_3d.default", x(2, 2, 3, 3, 3), small(2, 4, 2, 1, 3), 0, 1, True),
        s("aten.slice.Tensor", x(4, 8), 1, 0, 8, 2),
    ]
    found += [spread, s("aten.upsample_nearest1d.vec", x(2, 2, 4), (6,), None)]
    found += [
        s(f"aten._upsample_{name}2d_aa.vec", x(2, 2, 4, 4), (6, 3), False, None) for name in ("bilinear", "bicubic")
    ]
    return [*found, conv((4, 4, 8), (3, 3, 3), 1, 1), conv((8, 3), (1, 1), 2, 0)]


def operator_samples() -> list[Sample]:
    families = (
        element_samples, reducing_samples, scan_samples, sorting_samples, scatter_samples, spectral_samples,
        einsum_samples, pooling_samples, halo_samples, linalg_samples,
    )  # fmt: skip
    return [sample for family in families for sample in family()]
