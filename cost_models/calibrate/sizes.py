"""The cases of a calibration: a spread of shapes that models use, from what is ruled by latency to what is by rates.

Each family is listed from its smallest; ``measure`` leaves out what a slow device would spend its budget on. On an
accelerator the host may take longer to launch an operator than the device to run it (on an H100 up to products of
1024 cubed: profile.csv of ``make gpu``). Such sizes say nothing of the device, so there are few of them, and larger
ones in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cost_models.calibrate.cases import Attention, Axis, Collective, Dispatch, Matmul, Operator, Stream, Update

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send")

# squares, what a layer widens and narrows, few rows, few columns, a short inner extent, extents off the powers of two
_SHAPES = (
    (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048),
    (4096, 4096, 4096), (8192, 8192, 8192), (256, 1024, 256), (256, 256, 1024), (1024, 1024, 256), (1024, 256, 1024),
    (2048, 512, 512), (512, 512, 2048), (512, 2048, 512), (4096, 64, 256), (4096, 1024, 4096), (4096, 11008, 4096),
    (8192, 4096, 1024), (16, 1024, 1024), (32, 4096, 4096), (1024, 1024, 32), (4096, 4096, 64), (200, 300, 500),
    (1000, 344, 1000), (2000, 1376, 516), (1023, 4095, 1025),
)  # fmt: skip
_LARGE_SHAPES = (
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 2048, 2048),
    (16384, 4096, 2048), (16384, 2048, 4096), (2048, 2048, 16384), (2048, 4096, 16384), (4096, 1024, 4096),
    (4096, 11008, 4096), (8192, 4096, 1024), (8192, 1024, 4096), (16384, 8192, 2048), (8192, 32000, 2048),
    (8192, 2048, 32000), (32, 4096, 4096), (512, 8192, 8192), (4096, 4096, 64), (4096, 4096, 256), (2000, 1376, 4096),
    (12288, 1536, 2048), (1536, 12288, 2048), (3072, 3072, 8192),
)  # fmt: skip
_BATCHED = ((128, 128, 64, 16), (256, 64, 256, 32), (512, 512, 64, 16), (1024, 64, 1024, 16), (2048, 2048, 128, 32))
_LARGE_BATCHED = ((1024, 64, 1024, 64), (2048, 2048, 128, 32), (1024, 1024, 1024, 16), (4096, 4096, 128, 16))
_ELEMENTS = tuple(2**power for power in range(15, 26))  # of float32 128 KiB to 128 MiB: from caches to memory
_LARGE_ELEMENTS = tuple(2**power for power in range(20, 30))  # of bfloat16 2 MiB to 1 GiB
_UPDATED = tuple(2**power for power in range(20, 29, 2))
_PASSES = {"add": 3, "mul": 3, "copy": 2, "layer norm": 2, "softmax": 2}
_ELEMENTWISE = ("add", "mul", "copy")  # programs are compiled on an accelerator: there norms are parts of such kernels
_ATTENTION = ((1, 4, 64, 32), (1, 8, 128, 64), (2, 4, 256, 64), (1, 8, 512, 32), (1, 8, 512, 64), (1, 4, 1024, 128),
              (1, 8, 1024, 64), (1, 8, 2048, 64), (1, 16, 4096, 128))  # fmt: skip
_LARGE_ATTENTION = ((1, 8, 1024, 64), (64, 12, 256, 64), (32, 12, 512, 64), (16, 16, 1024, 64), (8, 16, 2048, 64),
                    (8, 16, 1024, 128), (8, 16, 2048, 128), (4, 16, 4096, 128), (2, 16, 8192, 128))  # fmt: skip


def operators(matmul_dtypes: Sequence[str], stream_dtype: str, accelerated: bool = False) -> tuple[Operator, ...]:
    """Every operator, family after family; attention and memory-bound operators in one dtype, in which products have
    all shapes, in others every second one.

    accelerated  sizes for an accelerator
    """
    found: list[Operator] = [Dispatch()]
    for dtype in matmul_dtypes:
        shapes, batched = (_LARGE_SHAPES, _LARGE_BATCHED) if accelerated else (_SHAPES, _BATCHED)
        found += [Matmul(dtype, m, n, k) for m, n, k in shapes[:: 1 if dtype == stream_dtype else 2]]
        found += [Matmul(dtype, m, n, k, batch) for m, n, k, batch in batched]
    for name, passes in _PASSES.items():
        if accelerated and name not in _ELEMENTWISE:
            continue
        elements = _LARGE_ELEMENTS if accelerated else _ELEMENTS
        found += [Stream(name, count, passes, stream_dtype) for count in elements]
    found += [Update(elements, 7) for elements in _UPDATED]  # AdamW: four are read, three are written
    for backward in (False, True):
        for causal in (False, True):
            sizes = _LARGE_ATTENTION if accelerated else _ATTENTION
            found += [Attention(*extents, causal, backward, stream_dtype) for extents in sizes]
    return tuple(found)


def collectives(axes: Iterable[Axis], largest_bytes: int) -> tuple[Collective, ...]:
    """Every collective over every axis from 4 KiB up, each four times as large as the one before. Messages go between
    neighbours, so they are measured where all of an axis' neighbours are equally far."""
    sizes = [2**power for power in range(12, 40, 2) if 2**power <= largest_bytes]
    return tuple(
        Collective(kind, axis, size)
        for axis in axes
        for kind in COLLECTIVES
        if kind != "send" or len(axis.levels) == 1
        for size in sizes
    )
