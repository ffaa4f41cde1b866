"""Products with weights that lie side by side: one product, equal to as many as there are weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.runtime.ops import joined_linear
from autoplan.runtime.ops.column_linear import side_by_side

WIDTH, COLUMNS = 6, (8, 4, 4)
Operands = tuple[Tensor, list[nn.Parameter], list[nn.Parameter]]


def lying(shapes: Sequence[tuple[int, ...]], beside: bool, dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """Parameters with random values, in one memory or each in its own."""
    numbers = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype) for shape in shapes]
    if beside:
        memory = torch.cat([v.flatten() for v in values])
        parts = memory.split([v.numel() for v in values])
        values = [part.view(v.shape) for part, v in zip(parts, values, strict=True)]
    return [nn.Parameter(v) for v in values]


def operands(beside: bool, dtype: torch.dtype = torch.float64, transposed: bool = False) -> Operands:
    columns = COLUMNS[1:] if transposed else COLUMNS
    shapes = [(WIDTH, n) if transposed else (n, WIDTH) for n in columns]
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return x.requires_grad_(), lying(shapes, beside, dtype, 1), lying([(n,) for n in columns], beside, dtype, 2)


def trained(results: Sequence[Tensor], given: Operands) -> list[Tensor | None]:
    """Results and gradients; each element of a result counts differently."""
    loss = sum((r * (1 + torch.arange(r.numel(), dtype=r.dtype).view(r.shape) / 7)).sum() for r in results)
    assert isinstance(loss, Tensor)
    loss.backward()
    x, weights, biases = given
    return [*(r.detach() for r in results), *(leaf.grad for leaf in (x, *weights, *biases))]


def apart(given: Operands, transposed: bool) -> tuple[Tensor, ...]:
    """By torch, one after another."""
    x, weights, biases = given
    return tuple(
        functional.linear(x, w.t() if transposed else w, b) for w, b in zip(weights, biases, strict=True)
    )


@pytest.mark.parametrize("transposed", [False, True], ids=["linear", "matmul"])
@pytest.mark.parametrize("beside", [False, True], ids=["each in its own memory", "side by side"])
@pytest.mark.parametrize("copied", [(), (1,)], ids=["parts", "one copied"])
def test_equal_to_one_product_after_another(beside: bool, transposed: bool, copied: tuple[int, ...]) -> None:
    given, plain = operands(beside, transposed=transposed), operands(False, transposed=transposed)
    found = trained(joined_linear(given[0], given[1], given[2], transposed, copied), given)
    for here, there in zip(found, trained(apart(plain, transposed), plain), strict=True):
        assert here is not None and there is not None
        torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True], ids=["linear", "matmul"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_as_autograd_rounds_it(dtype: torch.dtype, transposed: bool) -> None:
    given, plain = operands(True, dtype, transposed), operands(False, dtype, transposed)
    found = trained(joined_linear(*given, transposed), given)
    for here, there in zip(found, trained(apart(plain, transposed), plain), strict=True):
        assert here is not None and there is not None and torch.equal(here, there)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls[function._schema.name.split("::")[1]] += 1
        return function(*args, **(kwargs or {}))


def multiplied(run: Callable[[], object]) -> int:
    with Counting() as counting:
        run()
    return sum(counting.calls[name] for name in ("mm", "addmm", "bmm", "baddbmm"))


@pytest.mark.parametrize(("beside", "forward", "backward"), [(True, 1, 2), (False, 3, 6)])
def test_one_product_forward_and_two_backward(beside: bool, forward: int, backward: int) -> None:
    """Of weights side by side: the backward's are the input's gradient and the weights'."""
    x, weights, biases = operands(beside)
    results: list[Tensor] = []
    assert multiplied(lambda: results.extend(joined_linear(x, weights, biases))) == forward
    loss = torch.stack([r.sum() for r in results]).sum()
    assert multiplied(loss.backward) == backward


def test_gradients_of_weights_side_by_side_lie_side_by_side() -> None:
    x, weights, biases = operands(True)
    trained(joined_linear(x, weights, biases), (x, weights, biases))
    assert side_by_side([w.grad for w in weights]) is not None
    assert side_by_side([b.grad for b in biases]) is not None


def test_a_frozen_weight_has_no_gradient_and_the_others_theirs() -> None:
    given, plain = operands(True), operands(False)
    for _, weights, _ in (given, plain):
        weights[1].requires_grad_(False)
    found = trained(joined_linear(*given), given)
    for here, there in zip(found, trained(apart(plain, False), plain), strict=True):
        assert (here is None) == (there is None)
        if here is not None and there is not None:
            torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def kept_bytes(copied: tuple[int, ...]) -> int:
    """What a reader keeps for its backward where it reads the last result alone."""
    x, weights, _ = operands(True)
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    *_, last = joined_linear(x, weights, apart=copied)
    with saved_tensors_hooks(pack, lambda t: t):
        last.exp().sin()  # sin keeps what exp gives, exp its result
        last.square()
    return kept[last.untyped_storage().data_ptr()]


def test_a_copied_result_is_kept_without_the_others() -> None:
    rows = 2 * 5
    assert kept_bytes(()) == rows * sum(COLUMNS) * 8
    assert kept_bytes((2,)) == rows * COLUMNS[2] * 8


def test_what_lies_otherwise_is_not_taken_for_side_by_side() -> None:
    weights = lying([(n, WIDTH) for n in COLUMNS], True, torch.float64, 0)
    assert side_by_side(weights) is not None
    first, second, third = weights
    for other in ([third, second, first], [first, third], [first, second, second], [first, second, None], [first]):
        assert side_by_side(other) is None
    assert side_by_side([weights[0], weights[1].clone()]) is None
    assert side_by_side([weights[0].t(), weights[1].t()]) is None
    swapped = nn.Parameter(weights[1].detach().clone())
    weights[1].data = swapped.data  # as two versions of the weights change places
    assert side_by_side(weights) is None
