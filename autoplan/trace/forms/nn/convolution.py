"""Convolutions."""

from collections.abc import Sequence

from autoplan.trace.canonical_forms import Builder, Ref, form


def several(numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each spatial dim."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return listed * count if len(listed) == 1 else listed


@form("aten.convolution.default")
def convolution(
    b: Builder, x: Ref, weight: Ref, bias: Ref | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Ref:  # fmt: skip
    """The bias is an addition of its own: a convolution split over input channels leaves a partial sum."""
    spatial = len(b.shape(weight)) - 2
    stride, padding, dilation = (several(numbers, spatial) for numbers in (stride, padding, dilation))
    output_padding = several(output_padding, spatial)
    args = (x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    result = b.emit("aten.convolution.default", *args, hint="conv")
    if bias is None:
        return result
    return b.emit("aten.add.Tensor", result, b.reshape(bias, (1, b.shape(bias)[0], *(1,) * spatial)))


@form("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    b: Builder, x: Ref, weight: Ref, bias: Ref | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Ref:  # fmt: skip
    spatial = len(b.shape(weight)) - 2
    sizes = [several(numbers, spatial) for numbers in (stride, padding, dilation, 0)]
    return convolution(b, x, weight, bias, sizes[0], sizes[1], sizes[2], False, sizes[3], groups)


@form("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    b: Builder, x: Ref, weight: Ref, bias: Ref | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Ref:  # fmt: skip
    """The weight is [inputs, outputs / groups, kernel..]: a bias has groups times its second size."""
    spatial = len(b.shape(weight)) - 2
    stride, padding, dilation, extra = (several(n, spatial) for n in (stride, padding, dilation, output_padding))
    return convolution(b, x, weight, bias, stride, padding, dilation, True, extra, groups)


@form("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv_padded(
    b: Builder, x: Ref, weight: Ref, bias: Ref | None = None, stride: int | Sequence[int] = 1, padding: str = "valid",
    dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Ref:  # fmt: skip
    """ "same" pads half of the kernel's reach; an odd remainder goes to the far side, by a pad of its own."""
    spatial = len(b.shape(weight)) - 2
    reach = [
        d * (k - 1) if padding == "same" else 0
        for d, k in zip(several(dilation, spatial), b.shape(weight)[2:], strict=True)
    ]
    if any(r % 2 for r in reach):
        far = tuple(amount for r in reversed(reach) for amount in (0, r % 2))
        x = b.emit("aten.constant_pad_nd.default", x, far, 0)
    return conv(b, x, weight, bias, stride, tuple(r // 2 for r in reach), dilation, groups)
