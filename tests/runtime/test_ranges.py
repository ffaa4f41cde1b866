"""An index that no rank has is an error under a split table, as it is on one device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis

AXES = (MeshAxis("tp", 2, 1),)
TABLE = torch.randn(4, 3)  # this rank's, of 8 rows
OFFSETS = torch.tensor([0, 2])


def one_device(ids: Tensor) -> Tensor:
    return functional.embedding(ids, torch.cat([TABLE, TABLE]))


def embedded(ids: Tensor) -> Tensor:
    return ops.vocab_parallel_embedding(TABLE, ids, axes=AXES)


def bags(ids: Tensor) -> Tensor:
    return ops.vocab_parallel_embedding_bag(TABLE, ids.unsqueeze(0), axes=AXES)


def ragged(ids: Tensor) -> Tensor:
    return ops.vocab_parallel_ragged_bag(TABLE, ids, OFFSETS, axes=AXES)


@pytest.mark.parametrize("look_up", [one_device, embedded, bags, ragged])
@pytest.mark.parametrize("wrong", [8, -1])
def test_an_index_outside_the_table_raises(look_up: Callable[[Tensor], Tensor], wrong: int) -> None:
    look_up(torch.tensor([0, 7, 3]))
    with pytest.raises((RuntimeError, IndexError), match=r"out of range|outside a table of 8 rows"):
        look_up(torch.tensor([0, wrong, 3]))


def test_an_index_outside_one_of_several_tables_raises() -> None:
    tables = [(4, 2, 1, "none", -1, False), (9, 2, 2, "sum", -1, False)]
    boxes = [(0, 0, 4, 0, 2, 0), (1, 0, 9, 0, 2, 8)]
    rows = torch.randn(26, requires_grad=True)

    def look_up(first: int, second: int) -> Tensor:
        return ops.lookups(rows, [torch.tensor([first]), torch.tensor([[second, 0]])], [], tables, boxes)

    assert look_up(3, 8).shape == (1, 4)
    for wrong in [(4, 8), (3, 9), (-1, 8)]:
        with pytest.raises(RuntimeError, match="outside its table, of 4 or 9 rows"):
            look_up(*wrong)


@pytest.mark.parametrize("wrong", [8, -1])
def test_a_target_outside_the_classes_raises(wrong: int) -> None:
    target = torch.tensor([0, wrong, -100])
    with pytest.raises(RuntimeError, match=r"outside a loss of 8 classes.*\[0, 8\), or -100"):
        ops.vocab_parallel_cross_entropy(torch.randn(3, 4), target, torch.tensor(2), axes=AXES)
    with pytest.raises(RuntimeError, match="outside a loss of 8 classes"):
        ops.vocab_parallel_weighted_cross_entropy(torch.randn(3, 4), target, torch.ones(8), axes=AXES)
