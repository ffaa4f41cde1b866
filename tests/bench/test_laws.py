"""Laws of the search: what is drawn can be asked for, what is broken is told; `make bench-laws` plans the cells."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from random import Random

import pytest

from autoplan.options import Parallelism
from tests.bench.laws import __main__ as bench
from tests.bench.laws.cells import CLUSTERS, LONG, MIXTURES, SUBJECTS, tried
from tests.bench.laws.laws import TOLERANCE, Finding, axes_of
from tests.bench.laws.pins import drawn, near

BEST = Parallelism(
    dp=4, tp=2, pp=4, cp=1, ep=1, zero=1, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2,
    recompute="selective", sequence_parallel=True,
)  # fmt: skip
HOLDS, BROKEN = Finding("a", "b", "more memory", 1.0, 1.0), Finding("a", "b", "zero3", 1.0, 0.99)


def test_pins_multiply_to_the_devices_and_pin_stages_of_a_pipeline_alone() -> None:
    random, many = Random(0), Counter[str]()
    for _ in range(500):
        pins = drawn(random, 32, BEST, ("dp", "tp", "pp", "ep"))
        assert math.prod(getattr(pins, name) for name in ("dp", "tp", "pp")) == 32 and pins.cp == 1
        assert pins.dp % pins.ep == 0  # a part of the data ranks
        assert pins.virtual_stages is None or (pins.pp > 1 and pins.pipeline_schedule in ("interleaved", None))
        many.update(name for name in ("ep", "tp", "pp") if getattr(pins, name) > 1)
        many["near"] += (pins.dp, pins.tp, pins.pp) == (4, 2, 4)
    assert min(many.values()) > 50 and len(many) == 4


def test_pins_around_a_plan_whose_experts_lie_on_tensor_ranks_too_keep_its_devices() -> None:
    best = replace(BEST, dp=4, tp=2, pp=4, ep=8, etp=1)
    found = [near(Random(seed), 32, best, ("dp", "tp", "pp", "ep")) for seed in range(200)]
    sizes = {(pins.dp, pins.tp, pins.pp, pins.ep) for pins in found}
    assert all(dp * tp * pp == 32 for dp, tp, pp, _ in sizes) and (4, 2, 4, 8) in sizes


def test_cells_are_dense_mixtures_and_long_and_the_first_ones_differ() -> None:
    cells = tried(tuple(SUBJECTS), CLUSTERS)
    assert len(set(cells)) == len(SUBJECTS) * len(CLUSTERS) and len(SUBJECTS) == 6
    assert {"ep" in axes_of(name) for name in MIXTURES} == {True} == {"cp" in axes_of(name) for name in LONG}
    assert len({model for model, _ in cells[:6]}) == 6


def test_what_is_broken_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked = {"first": [HOLDS, Finding("a", "b", "ddp", TOLERANCE, 1.0)], "second": [BROKEN]}
    monkeypatch.setattr(bench, "asked", lambda given: [(key, lambda key=key: iter(asked[key])) for key in asked])
    given = argparse.Namespace(kept=tmp_path / "kept.json", only=[], seconds=math.inf)
    assert bench.run(given) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-2] == "3 compared, 1 broken" and told[-1].endswith("zero3   BROKEN")
    kept = json.loads(given.kept.read_text())
    assert [tuple(each.values()) for each in kept["second"]] == [astuple(BROKEN)]
    asked["second"] = []  # what is kept isn't planned again
    assert bench.run(given) == 1 and HOLDS.holds and not BROKEN.holds
