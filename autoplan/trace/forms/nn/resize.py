"""Pictures in another size: nn.Upsample and F.interpolate, by size or by factor."""

from collections.abc import Sequence

from autoplan.trace.canonical_forms import Builder, Ref, form

NEAREST = tuple(f"aten.{name}{n}d.vec" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))
LINEAR = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


def listed(numbers: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if numbers is None else tuple(numbers)


def nearest(op: str) -> None:
    @form(op)
    def resized(b: Builder, x: Ref, size: Sequence[int] | None, factors: Sequence[float] | None = None) -> Ref:
        """A size that is a multiple is told by its factors: of the whole, and of a part alike."""
        space = b.shape(x)[2:]
        pairs = list(zip(size, space, strict=True)) if size is not None else []
        if pairs and not any(new % old for new, old in pairs):
            size, factors = None, [float(new // old) for new, old in pairs]
        return b.emit(op, x, listed(size), listed(factors), hint="upsample")


def interpolated(op: str) -> None:
    @form(op)
    def resized(
        b: Builder, x: Ref, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None = None
    ) -> Ref:
        return b.emit(op, x, listed(size), align_corners, listed(factors), hint="upsample")


for op in NEAREST:
    nearest(op)
for name in LINEAR:
    interpolated(f"aten.{name}.vec")
