"""Dropout's operator: the same words everywhere, parts that are slices of the whole, masks that look like chance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autoplan.ops.dropout import Places, dropout, dropped_at_once, words_of
from autoplan.runtime.ops.global_random import step_keys

SHAPES = ((7,), (1000,), (4, 300), (3, 5, 7), (2, 3, 4, 257), (600, 2), (1, 1), (5, 1, 70000), ())
KEY = step_keys(3, 5, 2)


def whole_of(x: Tensor) -> Places:
    return Places(x.shape, [0] * x.ndim, list(x.shape), [0] * x.ndim)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_blocks_drop_what_plain_operators_drop(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    found = dropout(x, 0.3, KEY[1], 9, whole_of(x))
    assert torch.equal(found, dropped_at_once(x, 0.3, KEY[1], 9, whole_of(x)))
    kept = found != 0
    torch.testing.assert_close(found[kept], (x / 0.7)[kept])


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1], ids=str)
def test_a_part_is_a_slice_of_the_whole(shape: tuple[int, ...]) -> None:
    """Split along each dim, by ranks and by microbatches."""
    x = torch.randn(shape, dtype=torch.float64)
    whole = dropout(x, 0.5, KEY[0], 2, whole_of(x))
    for dim, size in enumerate(shape):
        if half := size // 2:
            part, expected = x.narrow(dim, half, half), whole.narrow(dim, half, half)
            at = [half * (d == dim) for d in range(x.ndim)]
            for key, first, stride in ((KEY[0], at, [0] * x.ndim), (KEY[1], [0] * x.ndim, at)):
                assert torch.equal(dropout(part, 0.5, key, 2, Places(part.shape, first, shape, stride)), expected)


def test_places_past_32_bits_are_places_of_their_own() -> None:
    """A part far inside a tensor of 2**46 rows differs from the one 2**32 rows before it."""
    x, far = torch.ones(64, 512), 1 << 40
    places = [Places(x.shape, [at, 0], [1 << 46, 512], [0, 0]) for at in (far, far - (1 << 32))]
    found = [dropout(x, 0.5, KEY[0], 1, place) for place in places]
    agree = (found[0] == found[1]).double().mean().item()
    assert abs(agree - 0.5) < 5 * 0.5 / math.sqrt(x.numel())


def test_the_gradient_is_dropped_alike_and_only_the_key_is_kept() -> None:
    x = torch.randn(50, 400, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = dropout(x, 0.25, KEY[0], 4, whole_of(x))
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0) and torch.allclose(x.grad[x.grad != 0], torch.tensor(1 / 0.75).double())
    assert sum(t.nbytes for t in kept) == 16
    given = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: dropout(t, 0.5, KEY[0], 4, whole_of(t)), given)


def test_everything_and_nothing() -> None:
    x = torch.randn(20, 300)
    assert not dropout(x, 1.0, KEY[0], 0, whole_of(x)).any()
    assert torch.equal(dropout(x, 0.0, KEY[0], 0, whole_of(x)), x)
    empty = torch.empty(0, 300)
    assert dropout(empty, 0.5, KEY[0], 0, whole_of(empty)).shape == (0, 300)


def test_fake_tensors_have_its_shape() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 5, dtype=torch.bfloat16)
        assert dropout(x, 0.5, torch.zeros(2, dtype=torch.int64), 0, whole_of(x)).shape == (3, 5)


def test_plain_operators_are_one_graph() -> None:
    x = torch.randn(8, 300)
    places = whole_of(x)
    plain = torch.compile(lambda t, key: dropped_at_once(t, 0.5, key, 3, places), fullgraph=True, backend="eager")
    assert torch.equal(plain(x, KEY[0]), dropout(x, 0.5, KEY[0], 3, whole_of(x)))


def words(key: Tensor, call: int, rows: int = 1024, columns: int = 1024, first: int = 0) -> Tensor:
    return words_of(key, call, Places((rows, columns), [first, 0], [1 << 20, columns], [0, 0]))


def bits(word: Tensor) -> Tensor:
    """±1 for the upper 16 bits, which say what is dropped: [bits, ...]."""
    return torch.stack([(word >> at & 1).to(torch.float32) * 2 - 1 for at in range(16, 32)])


def test_bits_are_balanced_and_bytes_are_uniform() -> None:
    word = words(KEY[0], 7)
    mean = bits(word).mean((1, 2))
    assert mean.abs().max() < 5 / math.sqrt(word.numel())
    for at in (0, 8, 16, 24):
        counts = torch.bincount((word >> at & 0xFF).flatten(), minlength=256).double()
        chi = ((counts - word.numel() / 256) ** 2 / (word.numel() / 256)).sum().item()
        assert abs(chi - 255) < 5 * math.sqrt(2 * 255)


def test_neighbours_steps_calls_and_microbatches_know_nothing_of_each_other() -> None:
    """No pair of upper bits correlates between an element and its neighbours along rows and columns, at distances of
    powers of two too, nor with the same element of another row block, call, step, or seed; 5.5 sigma of 256 pairs."""
    word = words(KEY[0], 7)
    other = {f"rows {d}": (word[d:], word[:-d]) for d in (1, 2, 3, 16, 64, 256, 512)}
    other |= {f"columns {d}": (word[:, d:], word[:, :-d]) for d in (1, 2, 3, 16, 64, 256, 512)}
    other |= {"call": (word, words(KEY[0], 8)), "later rows": (word, words(KEY[0], 7, first=1 << 16))}
    other |= {"step": (word, words(step_keys(3, 6, 1)[0], 7)), "seed": (word, words(step_keys(4, 5, 1)[0], 7))}
    for name, (one, two) in other.items():
        a, b = bits(one).flatten(1), bits(two).flatten(1)
        worst = (a @ b.T / a.shape[1]).abs().max().item()
        assert worst < 5.5 / math.sqrt(a.shape[1]), name


def test_sums_of_rows_and_columns_scatter_as_chance_does() -> None:
    """The numbers of dropped elements of rows, of columns, and of four corners of rectangles are binomial."""
    p, word = 0.1, words(KEY[0], 11)
    dropped = (word >= 0x7FFFFFFF - round(p * 2**32)).double()
    for counts in (dropped.sum(0), dropped.sum(1)):
        z = (counts - p * 1024) / math.sqrt(1024 * p * (1 - p))
        assert z.abs().max() < 5.5 and abs(z.var().item() - 1) < 5 * math.sqrt(2 / 1024)
    sign = bits(word)[-1]
    corners = (sign[:512, :512] * sign[512:, :512] * sign[:512, 512:] * sign[512:, 512:]).mean().item()
    assert abs(corners) < 5 / 512
