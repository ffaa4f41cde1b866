"""Whatever a user's modules, parameters and arguments are called, program.py runs and computes the same."""

import ast
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan import Parallelism
from autoplan.emit.naming import keyword_arguments, module_attributes, with_class_names
from autoplan.lower.lowering import lower
from tests.support.hand_made import llama
from tests.support.planning import parallelize_alone
from tests.support.records import record_of

pytestmark = pytest.mark.usefixtures("verified_in_pool")


class Stage0(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Module()
        self.zero.grad = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.zero.grad


class Model(nn.Module):
    """Every name of which is one that program.py has already, or can't have."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.none, self.stage, self.tp = nn.Linear(8, 8), nn.Linear(8, 8), Stage0(), nn.Parameter(torch.ones(8))
        self.parts = nn.ModuleDict({"3x3": nn.Linear(8, 8)})
        self.register_buffer("first_dropout", torch.ones(8))

    def forward(self, layer: Tensor, experts: Tensor, unused: Tensor, device: Tensor, x0: Tensor, all_reduce: Tensor):
        hidden = self.stage(F.relu(self.parts["3x3"](F.relu(self.none(F.relu(self.f(layer)))))))
        return hidden * self.tp + self.first_dropout * experts + unused * device + x0 + all_reduce


@pytest.mark.parametrize("pinned", [{"tp": 2}, {"pp": 2, "micro_batch": 2}], ids=str)
def test_names_that_the_program_has_already(pinned: dict[str, int]) -> None:
    batch = tuple(torch.randn(4, 8) for _ in range(7))
    plan = parallelize_alone(Model(), "1x2 cpu", batch, loss_fn=F.mse_loss, parallelism=Parallelism(**pinned))
    assert plan.verify().passed


def test_classes_are_distinct_and_none_that_is_imported() -> None:
    record = record_of(llama(), "1x2 cpu", tp=2)
    lowered = lower(record.model, record.chosen)
    for names in (("F", "F", "BlockF"), ("Stage0", "None", "3x3"), ("list", "shard", "Stage1")):
        blocks = tuple(replace(b, name=name) for b, name in zip(lowered.blocks, names, strict=True))
        found = [b.name for b in with_class_names(replace(lowered, blocks=blocks), frozenset({"F", "shard"})).blocks]
        assert len(set(found)) == 3 and not {"F", "shard", "list", "Stage0"}.intersection(found)
        ast.parse("\n".join(f"class {name}: pass" for name in found))
    assert with_class_names(lowered, frozenset({"F"})) == lowered


def test_attributes_are_none_that_a_module_has() -> None:
    found = module_attributes(["zero.grad", "tp", "first_dropout", "a.weight"], ["self.tp"])
    assert found == {"zero.grad": "zero_grad_", "tp": "tp_", "first_dropout": "first_dropout_", "a.weight": "a_weight"}


def test_an_argument_that_would_hide_a_function_is_read_by_its_name() -> None:
    own, lines = keyword_arguments(["ids", "experts"], {"ids": "ids", "experts": "experts_2"}, 4)
    assert own == ["ids"] and lines == ['    experts_2 = unused["experts"]']
