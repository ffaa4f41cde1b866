"""What each replica has of a gradient is told from a module's loss alone, where that is a mean over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from autoplan.errors import InputsError
from autoplan.verify.one_process.replica_gradients import replica_rows, summands

Loss = Callable[[Tensor, Tensor], Tensor]


def backward_of(loss: Loss) -> Callable[[nn.Module, Mapping[str, Tensor]], float]:
    def backward(module: nn.Module, batch: Mapping[str, Tensor]) -> float:
        found = loss(module(batch["x"]), batch["labels"])
        found.backward()
        return float(found.detach())

    return backward


def made() -> tuple[nn.Module, dict[str, Tensor]]:
    """Eight rows of unlike numbers of valid labels; the last replica of four has none."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (8, 3), generator=generator)
    labels[1, 1:], labels[6:] = -100, -100
    torch.manual_seed(0)
    return nn.Linear(4, 5).double(), {"x": torch.randn(8, 3, 4, generator=generator).double(), "labels": labels}


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_shares_are_those_of_the_labels_that_count() -> None:
    module, batch = made()
    rows = replica_rows(batch, 4, 1)
    loss, found = summands(module, backward_of(mean), batch, rows)
    assert loss == pytest.approx(float(mean(module(batch["x"]), batch["labels"]).detach()))
    valid = int((batch["labels"] != -100).sum())
    for share, mine in zip(found, rows, strict=True):
        logits = module(mine["x"]).flatten(0, 1)
        part = nn.functional.cross_entropy(logits, mine["labels"].flatten(), reduction="sum") / valid
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(part, list(module.parameters()))])
        torch.testing.assert_close(share, wanted, rtol=1e-10, atol=1e-12)


def test_a_loss_over_pairs_of_rows_is_refused() -> None:
    module, batch = made()

    def paired(logits: Tensor, labels: Tensor) -> Tensor:
        return mean(logits, labels) + logits.flatten(1).std(0).sum()

    with pytest.raises(InputsError, match="its loss isn't a mean over rows"):
        summands(module, backward_of(paired), batch, replica_rows(batch, 4, 1))
