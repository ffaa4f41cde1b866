"""Compiled programs of other kinds than transformers: their memory, calls and step beside what the plan predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.rehearsal.outcome import Rehearsal
from examples import dlrm, unet
from tests.support import zoo
from tests.support.planning import parallelize_unproved

STEP = 0.01  # by which the step may be off
MEMORY = 0.03


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A U-Net under ZeRO-2 on eight ranks, whose head has two rows and whose first segment has no gradient to give."""
    plan = parallelize_unproved(
        unet.make_model(levels=2), "1x8 a100-sxm-80gb", unet.example_inputs(128),
        loss_fn=unet.loss_fn, training=Training(precision="bf16-mixed"),
        parallelism=Parallelism(dp=8, tp=1, pp=1, zero=2, micro_batch=16),
    )  # fmt: skip
    return autoplan.load(plan.export(tmp_path_factory.mktemp("unet") / "out")).rehearse()


@pytest.mark.slow
def test_rows_that_do_not_divide_are_priced_as_they_are_sent(convolutions: Rehearsal) -> None:
    """The head's two biases are gathered from eight ranks that each put in one; its weight, of two rows, is cut by
    columns, which divide."""
    sent = {(call.kind, call.bytes, call.padding) for one in convolutions.balances for call in one.priced}
    parameters = (2 * 64 + 2) * 2
    biases = 2 * 2
    assert ("all-gather", parameters, 3 * biases) in sent
    assert ("reduce-scatter", 2 * parameters, 2 * 3 * biases) in sent
    assert not [difference for one in convolutions.balances for difference in one.differences]


@pytest.mark.slow
def test_what_stands_from_kernel_to_kernel_is_what_is_predicted(convolutions: Rehearsal) -> None:
    for one in convolutions.classes:
        assert abs(one.off) < MEMORY, str(convolutions)


@pytest.mark.slow
def test_a_first_segment_without_a_gradient_to_give_has_its_backward(convolutions: Rehearsal) -> None:
    assert convolutions.together.simulated_s == pytest.approx(convolutions.predicted_s, rel=STEP)


@pytest.mark.slow
def test_placed_tables_bring_their_constants_to_the_device(tmp_path: Path) -> None:
    plan = parallelize_unproved(dlrm.make_model(rows=100_000, batch=64), "1x2 h100-sxm", parallelism="table-parallel")
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert not found.failed, str(found)


def test_collectives_slow_the_kernels_beside_them(tmp_path: Path) -> None:
    """Products of weights' gradients run while the inputs' are summed: what that costs them is theirs, not shared out
    over the segment.
    The update is a call, too, though it returns nothing."""
    model, batch, _ = zoo.small("llama", layers=4)
    plan = parallelize_unproved(
        model, "1x2 h100-sxm", batch, training=Training(precision="bf16-mixed"),
        parallelism=Parallelism(dp=1, tp=2, pp=1, micro_batch=4, sequence_parallel=False),
    )  # fmt: skip
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert found.together.simulated_s == pytest.approx(found.predicted_s, rel=STEP), str(found)
    (one,) = found.classes
    assert "aten._fused_adamw_" in {call.name for call in one.trace.calls if call.during == "update"}


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True], ids=["whole rows", "sequence parallel"])
def test_chunks_are_issued_as_priced(tmp_path: Path, sequence: bool) -> None:
    """A compiler keeps their order, so that no less is hidden in the simulated step than the plan says."""
    model, batch, _ = zoo.small("llama", layers=4)
    plan = parallelize_unproved(
        model, "1x2 h100-sxm", batch, training=Training(precision="bf16-mixed"),
        parallelism=Parallelism(dp=1, tp=2, pp=1, micro_batch=4, sequence_parallel=sequence, tp_overlap=2),
    )  # fmt: skip
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert not found.failed, str(found)
    assert "row_linear(" in (tmp_path / "out" / "program.py").read_text()
    assert not [difference for one in found.balances for difference in one.differences]
    assert found.together.simulated_s <= found.predicted_s * (1 + STEP), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_gathered_again_is_issued_as_priced(tmp_path: Path, ranks: int) -> None:
    """By an operator of the runtime's own, which a compiler can't take for the forward's gather. Four ranks gather two
    heads of keys and values, too, which are kept."""
    model, batch, _ = zoo.small("llama", layers=4)
    plan = parallelize_unproved(
        model, f"1x{ranks} h100-sxm", batch, training=Training(precision="bf16-mixed"),
        parallelism=Parallelism(dp=1, tp=ranks, pp=1, micro_batch=2, recompute="selective", sequence_parallel=True),
    )  # fmt: skip
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert not found.failed, str(found)
    assert "regathered_linear(" in (tmp_path / "out" / "program.py").read_text()
    assert not [difference for one in found.balances for difference in one.differences]


class Narrow(nn.Module):
    """Attention whose values have shorter heads than its queries, as DeepSeek's."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.queries, self.keys, self.values)]
        return nn.functional.scaled_dot_product_attention(*heads, is_causal=True).square().mean()


def test_heads_of_two_sizes_are_rehearsed_in_half_precision() -> None:
    """The flash kernel has none, and was taken for what the memory-efficient one computes."""
    plan = parallelize_unproved(
        Narrow(), "1x2 h100-sxm", (torch.zeros(4, 32, 64),), parallelism="dp",
        training=Training(precision="bf16-mixed", compile=False),
    )  # fmt: skip
    found = plan.rehearse()
    assert not found.failed, str(found)
