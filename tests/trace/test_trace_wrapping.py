"""Which of a batch go to forward and which to the loss."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.errors import InputsError
from autoplan.trace.batch_binding import Binding, bind, bind_named

X = torch.zeros(8, 6)


def model(forward: Callable[..., Tensor]) -> nn.Module:
    return type("Model", (nn.Module,), {"forward": forward})()


def bound(forward: Callable[..., Tensor], count: int, loss_fn: Callable[..., Tensor] | None = F.mse_loss) -> Binding:
    return bind(model(forward), (X,) * count, loss_fn)


def test_a_target_has_a_name_of_its_own_beside_forwards() -> None:
    found = bound(lambda self, x, target: x, 3)
    assert (found.forward, found.targets) == (("x", "target"), ("target_",))
    found = bound(lambda self, target_0: target_0, 3, lambda output, one, other: output)
    assert (found.forward, found.targets) == (("target_0",), ("target_0_", "target_1"))
    assert bound(lambda self, input_1, *more: input_1, 3, None).forward == ("input_1", "input_1_", "input_2")


def test_where_forward_takes_any_number_the_loss_gets_what_it_needs() -> None:
    found = bound(lambda self, *values: values[0], 3)
    assert (found.forward, found.targets) == (("input_0", "input_1"), ("target",))
    assert bound(lambda self, *values: values[0], 2, lambda output: output).targets == ()
    assert bound(lambda self, x, *values: x, 2, nn.CrossEntropyLoss()).targets == ("target",)


def test_an_optional_parameter_named_target_gets_none() -> None:
    found = bound(lambda self, x, target=None: x, 2)
    assert (found.forward, found.targets) == (("x",), ("target_",))


def test_names_say_how_they_were_bound() -> None:
    for forward, count in (
        (lambda self, x, target=None: x, 2), (lambda self, *values: values[0], 3), (lambda self, x, target: x, 3),
    ):  # fmt: skip
        found = bound(forward, count)
        assert bind_named(model(forward), dict.fromkeys(found.names, X), F.mse_loss) == found
    named = {"x": X, "mask": X, "labels": X}
    found = bind(model(lambda self, x, *, mask: x), named, F.mse_loss)
    assert bind_named(model(lambda self, x, *, mask: x), named, F.mse_loss) == found and found.targets == ("labels",)


def test_a_loss_that_does_not_say_what_it_needs() -> None:
    with pytest.raises(InputsError, match=r"any number of tensors.*doesn't say how many"):
        bound(lambda self, *values: values[0], 2, torch.dist)
