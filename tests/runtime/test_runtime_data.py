"""Batches to try a program on."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autoplan.errors import InputsError
from autoplan.ir.graph import Ref, TensorType
from autoplan.ir.typed_program import Compute, LoweredBlock, TypedValue
from autoplan.options import Training
from autoplan.runtime.data import sources
from autoplan.runtime.data.samples import by_sample, cut, inputs_of_rows
from autoplan.runtime.program import ProgramSpec
from autoplan.trace.rescale import rescale
from tests.fixtures import tiny_program as tiny
from tests.support.planning import parallelize_alone

EXACT = Training(precision="fp64", compile=False)
TEXT = string.ascii_letters + string.digits  # each byte once, so that a row is found again


def wide_spec() -> ProgramSpec:
    """The tiny program with a table of 300 rows."""
    spec = tiny.spec()
    table = TensorType((300, tiny.WIDTH), "float64")
    embed, layer, head = spec.lowered.blocks
    blocks = (widened(embed, table), layer, widened(head, table))
    return replace(spec, lowered=replace(spec.lowered, blocks=blocks))


def widened(block: LoweredBlock, table: TensorType) -> LoweredBlock:
    body = tuple(
        replace(s, value=replace(s.value, type=TensorType((8, 3, 300), "float64"))) if s.value.name == "logits" else s
        for s in block.body
    )
    return replace(block, parameters=(replace(block.parameters[0], type=table),), body=body)


def shifting_spec() -> ProgramSpec:
    """The same, its labels moved by the model: what the loss reads is made from a slice of them."""
    spec = wide_spec()
    moved = TensorType((8, 2), "int64")
    labels = spec.lowered.batch[1]
    later = TypedValue("later", moved, labels.layout, (8, 2))
    slices = (Compute(later, "aten.slice.Tensor", (Ref("labels"), 1, 1, 3), (), ()), *spec.lowered.constants)
    segments = (*spec.lowered.segments[:-1], replace(spec.lowered.segments[-1], externals=("later", "valid")))
    return replace(spec, lowered=replace(spec.lowered, constants=slices, segments=segments))


def test_an_input_s_use_is_read_from_the_program() -> None:
    lowered = tiny.spec().lowered
    assert sources.use_of(lowered, "tokens") == sources.Use(tiny.VOCAB, target=False, shifted=False)
    assert sources.use_of(lowered, "labels") == sources.Use(tiny.VOCAB, target=True, shifted=False)
    assert sources.use_of(shifting_spec().lowered, "labels") == sources.Use(300, target=True, shifted=True)


def test_random_batches_depend_on_seed_and_step_alone() -> None:
    spec = tiny.spec()
    batch = sources.batch_source(spec, None, seed=1)
    assert {n: t.shape for n, t in batch(0).items()} == {"tokens": (8, 3), "labels": (8, 3)}
    assert all(int(t.min()) >= 0 and int(t.max()) < tiny.VOCAB for t in batch(3).values())
    again, other = sources.batch_source(spec, None, seed=1), sources.batch_source(spec, None, seed=2)
    assert torch.equal(batch(5)["tokens"], again(5)["tokens"])
    assert not torch.equal(batch(5)["tokens"], batch(6)["tokens"])
    assert not torch.equal(batch(5)["tokens"], other(5)["tokens"])


@pytest.mark.parametrize("shift", [0, 1])
def test_a_text_s_next_byte_is_the_label(tmp_path: Path, shift: int) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text(TEXT)
    (tmp_path / "not.bin").write_bytes(b"\xff" * 1000)
    spec = wide_spec() if shift else shifting_spec()
    for source in (tmp_path, tmp_path / "deep" / "a.txt"):
        batch = sources.batch_source(spec, source, seed=0)(0)
        for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
            found = TEXT.encode().find(bytes(tokens))
            assert found >= 0
            assert bytes(labels) == TEXT.encode()[found + shift : found + shift + 3]


def test_samples_are_the_same_and_in_order_however_many_a_step_takes(tmp_path: Path) -> None:
    """Steps of 8, 6 and 8 rows, of a plan whose batch has 8, or 16: each sample once, and as steps of 8 have them."""
    (tmp_path / "a.txt").write_text(TEXT)
    whole = wide_spec()
    model = parallelize_alone(tiny.reference(), "1x1 cpu", next(tiny.batches(1)), training=EXACT).record.model
    six = replace(whole, lowered=replace(whole.lowered, batch=tuple(map(of_six, whole.lowered.batch))))
    for rows in (8, 16):
        planned = rescale(model, batch=rows)
        source = sources.batch_source(whole, tmp_path, 0, planned)
        wanted = {n: torch.cat([source(k)[n] for k in range(5)]) for n in ("tokens", "labels")}
        position, taken = 0, []
        for spec, size in ((whole, 8), (six, 6), (six, 6), (six, 6), (whole, 8)):
            batch = by_sample(spec, sources.batch_source(spec, tmp_path, 0, planned), planned)(position)
            assert len(batch["tokens"]) == size
            position += size
            taken.append(batch)
        for name, values in wanted.items():
            assert torch.equal(torch.cat([batch[name] for batch in taken]), values[:position])


def of_six(value: TypedValue) -> TypedValue:
    return replace(value, type=TensorType((6, *value.type.shape[1:]), value.type.dtype))


class Weighted(nn.Module):
    """``weights`` have no rows of the batch, though 16 is a multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 1)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.linear(x * weights).square().mean()


def test_the_model_says_which_inputs_have_rows() -> None:
    batch = {"x": torch.zeros(8, 16), "weights": torch.zeros(16)}
    model = parallelize_alone(Weighted(), "1x1 cpu", batch, training=EXACT).record.model
    assert inputs_of_rows(model) == {"x": 1, "weights": 0}
    pairs, weights = torch.arange(16), torch.ones(16)
    assert cut([pairs, pairs + 16], 2, 6, 4).tolist() == list(range(12, 20))
    assert cut([weights, weights], 0, 6, 4) is weights


class Offsets(nn.Module):
    """``begins`` has an element more than the batch has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor, begins: Tensor) -> Tensor:
        return (self.linear(x).squeeze(1) * (begins[1:] - begins[:-1])).mean()


def test_an_input_that_is_no_whole_rows_is_refused() -> None:
    model = parallelize_alone(
        Offsets(), "1x1 cpu", {"x": torch.zeros(8, 4), "begins": torch.zeros(9)}, training=EXACT
    ).record.model
    with pytest.raises(InputsError, match=r"begins|isn't known"):
        inputs_of_rows(model)


def test_tokens_in_a_binary_file_are_not_read_as_a_text(tmp_path: Path) -> None:
    """As nanoGPT writes them, two bytes each."""
    file = tmp_path / "train.bin"
    file.write_bytes(torch.arange(65, 100, dtype=torch.int16).numpy().tobytes())
    with pytest.raises(InputsError, match="byte 1 is 0, so it is no text but numbers"):
        sources.batch_source(wide_spec(), file, seed=0)


def test_text_for_what_reads_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    with pytest.raises(InputsError, match="none is looked up in a table of at least 256 rows"):
        sources.batch_source(tiny.spec(), tmp_path, seed=0)
    with pytest.raises(InputsError, match="2 bytes of text, a sequence has 3"):
        sources.batch_source(wide_spec(), tmp_path, seed=0)
    with pytest.raises(InputsError, match="there is no such file or directory"):
        sources.batch_source(wide_spec(), tmp_path / "lost", seed=0)


def test_throughput_is_counted_in_tokens_or_rows() -> None:
    assert sources.elements_per_step(tiny.spec()) == (24, "tokens")
