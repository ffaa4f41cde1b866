"""Exported configurations, read by the trainers' own parsers where they are installed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from autoplan.options import Parallelism
from autoplan.targets import config_of
from tests.support.target_parsers import PARSERS, parsed, pins_of
from tests.support.target_plans import WAYS, record

FURTHER = (
    Parallelism(dp=2, tp=2, pp=1, zero=3, micro_batch=1, sequence_parallel=True, recompute="full"),
    Parallelism(dp=1, tp=1, pp=2, cp=2, zero=0, micro_batch=1),
    Parallelism(dp=4, tp=1, pp=1, zero=2, offload="optimizer"),
)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("pinned", (*WAYS, *FURTHER), ids=str)
def test_it_is_accepted_and_says_the_plan(kind: str, pinned: Parallelism) -> None:
    plan = record(pinned)
    config = config_of(plan, kind)
    found = parsed(config, plan.cluster.devices)
    if found is None:
        pytest.skip(f"{kind} isn't installed")
    p = config.parallelism
    single = (p.dp or 1) * (p.ep or 1) == 1  # of one replica nothing is sharded
    told = {"rows": plan.model.batch[0].type.shape[0], "zero": 0 if single else p.zero or 0, "devices": 4,
            "recompute": p.recompute or "none"}  # fmt: skip
    assert found.items() & told.items() == {(name, told[name]) for name in found.keys() & told.keys()}
    read = pins_of(found, config)
    asked = {f.name: getattr(p, f.name) for f in fields(p) if getattr(p, f.name) is not None}
    differ = {name: (value, getattr(read, name)) for name, value in asked.items() if getattr(read, name) != value}
    assert differ == {}
    if (p.tp or 1) > 1 and "sequence_parallel" in found:
        assert found["sequence_parallel"] == bool(p.sequence_parallel)
