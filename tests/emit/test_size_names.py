"""Literals by how they move with the batch: formulas of what enters, never by what number they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autoplan import Parallelism, Training
from autoplan.emit import sized_program
from autoplan.emit.size_names import Names, Size, Sized, UnsizedError, joined
from autoplan.emit.sized_program import SizedProgram, fitting, program_text
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import Evaluable, PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import program_of
from autoplan.lower.resized import BatchSizes, planned_sizes
from tests.support.planning import parallelize_alone

POINTS = ((4, 6, 1), (8, 6, 1), (12, 6, 1), (8, 6, 2), (8, 3, 1), (4, 3, 1), (4, 12, 1))  # rows, tokens, microbatches


def programs() -> list[Sized]:
    empty = Lowered("x", Mesh.of(dp=1, mb=1), (), (), (), (), (), (), (), ())
    return [Sized(replace(empty, mesh=Mesh.of(dp=1, mb=m)), rows, tokens) for rows, tokens, m in POINTS]


B, S = [rows // m for rows, _, m in POINTS], [tokens for _, tokens, _ in POINTS]
ONE, MORE = st.integers(1, 5), st.integers(0, 5)


def entering(whole: int = 1) -> Names:
    return Names(programs(), [("x", (Size.of(B), Size.of([whole * s for s in S]), 7))])


@given(ONE, ONE, MORE, st.sampled_from(("b", "s", "bs", "lines")))
def test_a_formula_gives_the_literal_at_every_size(factor: int, ways: int, more: int, kind: str) -> None:
    sizes = {"b": B, "s": S, "bs": [b * s for b, s in zip(B, S, strict=True)], "lines": S}[kind]
    values = [factor * x + (more if kind == "lines" else 0) for x in sizes]
    names = entering(ways)
    text = names(Size.of(values)) if kind != "lines" or ways == 1 or not more else ""
    for number, value in enumerate(values if text else ()):
        x = torch.empty(B[number], ways * S[number], 7)
        known = {"x": x}
        exec("\n".join(names.lines(0)), known)
        assert eval(text, known) == value  # type: ignore[arg-type]


def test_what_no_size_gives_is_said() -> None:
    with pytest.raises(UnsizedError, match="a size of 5"):
        entering()(Size.of([5, 9, 2, 7, 7, 1, 8]))
    with pytest.raises(UnsizedError, match=r"is 1\.0 or 2\.0"):
        joined([1.0, 2.0], "a scale")
    assert joined([(3, True, "x"), (3, True, "x")], "a tuple") == (3, True, "x")


def test_microbatches_are_told_by_name_and_halves_are_divided() -> None:
    names = entering(2)
    assert names(Size.of([3 * m for _, _, m in POINTS])) == "3 * microbatches"
    assert names(Size.of(S)) == "s // 2" and names.lines(4) == ["    s = x.shape[1]"]
    assert names(Size.of(B)) == "b" and names.lines(0) == ["b, s = x.shape[:2]"]


class Chunky(nn.Module):
    """A hidden size, a number of heads and a window that are the rows, the tokens, and neither."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])[None, :].expand(ids.shape[0], ids.shape[1])
        hidden = self.inner(self.embed(ids) + self.embed(places))
        heads = hidden.view(ids.shape[0], ids.shape[1], 8, 2).transpose(1, 2)
        mixed = heads.softmax(-1).transpose(1, 2).reshape(ids.shape[0] * ids.shape[1], 16)
        return self.out(mixed).square().mean()


def record_of(rows: int, tokens: int) -> PlanRecord:
    """A plan of Chunky, told that nothing stands against other sizes."""
    ids = torch.zeros(rows, tokens, dtype=torch.int64)
    plan = parallelize_alone(
        Chunky(), "1x4 cpu", (ids,), training=Training(), parallelism=Parallelism(dp=2, tp=2, pp=1, micro_batch=2)
    )
    return replace(plan.record, evaluable=Evaluable())


def text_of(rows: int, tokens: int) -> str:
    """Its program without comments."""
    text = program_text(record_of(rows, tokens), "x")
    return "\n".join(line.partition("#")[0].rstrip() for line in text.splitlines())


def test_the_program_of_another_batch_is_the_same_text(tmp_path: Path) -> None:
    """Also where hidden size, heads and tokens are the same number."""
    here, there = text_of(8, 16), text_of(16, 24)
    body = here[here.index("class ") :]
    assert body == there[there.index("class ") :]
    assert "b, s = " in body and "reshape(b, s, 8, 2)" in body and "b * s" in body and "microbatches" in body


def test_what_every_size_is_compared_with_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(sized_program, "fitting", lambda *given: made.append(1) or fitting(*given))
    record = record_of(8, 16)
    program = SizedProgram(record, program_of(record))
    sizes = [BatchSizes(4, 16), BatchSizes(8, 8), BatchSizes(2, 8)]
    assert [planned_sizes(program.at(each)) for each in sizes] == sizes
    assert len(made) == 1
