"""Verification: what it compares, that it notices a difference, how it shrinks a large plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autoplan
from autoplan.errors import InputsError, PlanFileError, VerificationError
from autoplan.ir.graph import Node
from autoplan.lower.after_search import program_of
from autoplan.verify import verify
from autoplan.verify.atoms import Atoms, Dim
from autoplan.verify.batch import example_batch, ignored_indices, integer_bounds
from autoplan.verify.compare import Run, gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.shrink import shrink
from autoplan.verify.single import on_one_device, random_state
from tests.support import zoo
from tests.support.hand_made import llama, mlp
from tests.support.planning import parallelize_alone
from tests.support.records import record_of


def run(loss: float = 1.0, **gradients: list[float]) -> Run:
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in gradients.items()}
    return Run((loss,), tensors, tensors)


def test_errors_are_relative_to_each_tensors_norm():
    one, other = run(2.0, a=[3.0, 4.0], b=[1e-3, 0.0]), run(2.0, a=[3.0, 4.5], b=[1e-3, 1e-4])
    worst = gradient_error(other, one, frozenset())
    assert worst.name == "a" and worst.error == pytest.approx(0.1)
    assert gradient_error(run(a=[3.0, 4.0], b=[2e-3, 0.0]), one, frozenset()).name == "b"


def test_a_missing_or_misshapen_tensor_is_infinitely_wrong():
    assert gradient_error(run(a=[1.0]), run(a=[1.0], b=[1.0]), frozenset()).error == math.inf
    assert parameter_error(run(a=[1.0, 2.0]), run(a=[1.0]), frozenset()).error == math.inf


def test_what_is_not_a_number_is_infinitely_wrong():
    assert loss_error(run(math.nan), run(1.0)).error == math.inf
    assert gradient_error(run(a=[math.nan]), run(a=[1.0]), frozenset()).error == math.inf


def test_only_rounding_counts_as_zero():
    exact = run(a=[1.0], b=[1e-15], c=[1e-9])
    assert zero_gradients(exact) == {"b"}


def test_a_buffer_of_rounding_alone_is_measured_against_all():
    """The mean of what was centred before: its digits are chance, but it has to be as small."""
    exact = run(a=[3.0, 4.0], mean=[1e-17, -2e-17])
    assert parameter_error(run(a=[3.0, 4.0], mean=[-1e-17, 3e-17]), exact, frozenset()).error < 1e-15
    worst = parameter_error(run(a=[3.0, 4.0], mean=[1e-3, 0.0]), exact, frozenset())
    assert worst.error > 1e-4 and worst.name == "mean"


def test_batches_hold_what_the_model_can_read():
    model = llama(vocab=64)
    assert integer_bounds(model) == {"input_ids": 64, "labels": 64}
    assert ignored_indices(model) == {"labels": -100}
    batch = example_batch(model, 0)
    assert batch["input_ids"].min() >= 0 and batch["input_ids"].max() < 64
    valid = (batch["labels"] != -100).sum(1)
    assert valid.min() < valid.max() == batch["labels"].shape[1]


class Encoded(nn.Module):
    """An autoencoder as torch's own example has it: pixels are probabilities, and its code is drawn."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.code, self.pixels, self.scale = nn.Linear(4, 4), nn.Linear(4, 4), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.code(x.view(-1, 4))
        found = torch.sigmoid(self.pixels(code + torch.randn_like(code)))
        return F.binary_cross_entropy(found, self.scale * x.view(-1, 4), reduction="sum")


def test_targets_that_are_probabilities_are_drawn_as_such():
    """Also of a model that draws, whose batch may still be one that it doesn't take."""
    batch = (torch.rand(4, 2, 2),)
    assert parallelize_alone(Encoded(), "1x2 cpu", batch, parallelism="ddp").verify().passed
    plan = parallelize_alone(Encoded(2.0), "1x2 cpu", batch, parallelism="ddp")
    with pytest.raises(InputsError, match=r"verification draws.*one device: RuntimeError: .*between 0 and 1.*batch="):
        plan.verify()


def test_a_model_that_does_not_take_any_numbers_is_verified_on_a_batch_of_its_own():
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(output, 2 * target)

    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    batch = (torch.randn(4, 4), torch.rand(4, 4) / 2)
    plan = parallelize_alone(model, "1x2 cpu", batch, loss_fn=loss_fn, parallelism="ddp")
    with pytest.raises(InputsError, match=r"verification draws.*between 0 and 1.*batch="):
        plan.verify()
    assert plan.verify(batch=batch).passed
    with pytest.raises(InputsError, match=r"target of shape \(8, 4\).*\(4, 4\)"):
        plan.verify(batch=(batch[0], torch.rand(8, 4)))
    with pytest.raises(InputsError, match="target of the batch: it lies on the meta device"):
        plan.verify(batch=(batch[0], batch[1].to("meta")))
    with pytest.raises(PlanFileError, match=r"^3: it is no folder's path"):
        plan.export(3)
    with pytest.raises(InputsError, match="the batch: the model can't compute"):
        plan.verify(batch=(batch[0], batch[1] + 2))


def test_a_loss_that_is_not_finite_is_the_batches_fault():
    batch = (torch.randn(4, 4), torch.rand(4, 4))

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * target.log()).mean()

    plan = parallelize_alone(nn.Linear(4, 4), "1x2 cpu", batch, loss_fn=loss_fn, parallelism="ddp")
    with pytest.raises(InputsError, match="the model's loss is nan"):
        plan.verify()
    assert plan.verify(batch={"input": batch[0], "target": batch[1]}).passed


def test_atoms_split_and_join():
    atoms = Atoms()
    whole, heads, width = (Dim(atoms.new(n)) for n in (24, 4, 6))
    atoms.equate(whole, Dim(heads.atoms + width.atoms))
    small = {atoms.flat(heads.atoms)[0]: 2}
    assert atoms.size(whole, small) == 12 and atoms.size(heads, small) == 2
    atoms.freeze(whole)
    assert atoms.is_frozen(atoms.flat(heads.atoms)[0])


def test_one_device_is_a_plan_like_any_other():
    record = on_one_device(record_of(mlp(), "1x4 cpu", dp=4, tp=1, pp=1))
    lowered = program_of(record)
    assert lowered.mesh.devices == 1 and len(lowered.stages) == 1


def test_a_large_plan_shrinks_to_eight_ranks():
    record = record_of(llama(batch=64, heads=16, kv=8, hidden=256, ffn=512, layers=8), "2x8 cpu", dp=2, tp=4, pp=2)
    small, note = shrink(record)
    assert small.chosen.mesh.devices == 8
    assert "shrunk to pp=2 dp=2 tp=2" in note
    lowered = program_of(small)
    assert max(math.prod(p.type.shape) for p in lowered.parameters) < 256 * 256
    state = random_state(small.model, 0)
    assert {p.source for p in small.model.parameters} <= set(state)


@pytest.mark.usefixtures("verified_in_pool")
def test_a_fault_in_the_program_is_noticed():
    """An operator changed behind the planner's back: the sharded program differs from the module, and says where."""
    module, batch, _ = zoo.small("llama", layers=2)
    plan = parallelize_alone(module, "1x2 cpu", batch, parallelism=autoplan.Parallelism(dp=1, tp=2, pp=1))
    blocks = list(plan.record.model.blocks)
    index = next(i for i, b in enumerate(blocks) if b.name == "LlamaDecoderLayer")
    blocks[index] = replace(blocks[index], nodes=tuple(map(without_scale, blocks[index].nodes)))
    broken = replace(plan.record, model=replace(plan.record.model, blocks=tuple(blocks)))
    with pytest.raises(VerificationError, match="differs from one device"):
        verify(broken, module, None, seed=0, raises=True)
    assert plan.verify().passed


def without_scale(node: Node) -> Node:
    if node.op != "aten.scaled_dot_product_attention.default":
        return node
    return replace(node, kwargs=tuple((k, 1.0 if k == "scale" else v) for k, v in node.kwargs))


class Dropping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.drop(self.up(x).relu())).pow(2).mean()


class Doubled(Dropping):
    """Not what was traced."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.usefixtures("verified_in_pool")
def test_a_model_with_dropout_is_verified_with_its_masks_and_its_trace_without():
    pinned = autoplan.Parallelism(dp=1, tp=2, pp=1)
    plan = parallelize_alone(Dropping(), "1x2 cpu", (torch.zeros(4, 8),), parallelism=pinned)
    result = plan.verify()
    assert result.passed and "with the same random numbers" in result.note
    with pytest.raises(VerificationError, match="the traced graph on one device differs"):
        verify(plan.record, Doubled(), None, seed=0, raises=True)


class Contrastive(nn.Module):
    """Two towers whose rows are compared with one another: the targets are made of no input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(12, 16)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores = F.normalize(self.left(a), dim=-1) @ F.normalize(self.right(b), dim=-1).T
        targets = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2


@pytest.mark.usefixtures("verified_in_pool")
def test_targets_that_no_input_gives_are_counted():
    batch = {"a": torch.randn(8, 8), "b": torch.randn(8, 12)}
    pins = autoplan.Parallelism(dp=1, tp=4, pp=1)
    assert parallelize_alone(Contrastive(), "1x4 cpu", batch, parallelism=pins).verify()
