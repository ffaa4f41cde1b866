"""What users give a Trainer - samplers, collators, ends of the data, arguments: one device's run, or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import autoplan
from autoplan.errors import ParallelismError
from autoplan.integrations.arguments import settled, tell_of_stream, training_of
from autoplan.integrations.program_model import program_of
from tests.support import trainer_loop as loop
from tests.support import trainer_options as options
from tests.support.forked import in_fork, run_ranks, run_script
from tests.support.planning import parallelize_alone

ALIKE = ("lengths", "longest", "backwards", "drop last", "odd end", "stream", "no skip", "plateau")
REFUSED = {
    "longest of a rank": "pad each batch alike on all ranks, or give every rank the whole batch",
    "by process": "seed the sampler alike on all ranks",
    "not finite": "isn't finite",
}


def exported(folder: Path, cluster: str, clip: float | None = None, **pinned: int) -> Path:
    ids = torch.zeros(loop.ROWS, loop.TOKENS, dtype=torch.int64)
    training = training_of(loop.arguments(str(folder)), clip_grad_norm=clip)
    plan = parallelize_alone(
        loop.small_llama(), cluster, {"input_ids": ids, "labels": ids}, effort="fast", training=training,
        parallelism=autoplan.Parallelism(**pinned),
    )  # fmt: skip
    return plan.export(folder / "plan")


def test_what_a_data_axis_runs_is_one_device_s(tmp_path: Path) -> None:
    plan = exported(tmp_path, "1x2 cpu", dp=2)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    alone = run_script(Path(shutil.copy(options.__file__, one)), [str(one), "1", "-", *ALIKE])
    assert alone.returncode == 0, alone.stderr
    script = Path(shutil.copy(options.__file__, two))
    for done in run_ranks(script, 2, [str(two), "2", str(plan), *ALIKE, *REFUSED], timeout_s=300):
        assert done.returncode == 0, done.stderr
    wanted, found = (json.loads((folder / "found.json").read_text()) for folder in (one, two))
    for case in ALIKE:
        assert "lines" in found[case], found[case]
        assert len(found[case]["lines"]) == len(wanted[case]["lines"]), case
        for line, known in zip(found[case]["lines"], wanted[case]["lines"], strict=True):
            assert line == pytest.approx(known, rel=1e-5), case
    for case, message in REFUSED.items():
        assert message in found[case].get("error", ""), found[case]


def test_workers_of_ranks_with_the_same_rows_draw_alike(tmp_path: Path) -> None:
    plan = exported(tmp_path, "1x2 cpu", tp=2)
    script = Path(shutil.copy(options.__file__, tmp_path))
    for done in run_ranks(script, 2, [str(tmp_path), "1", str(plan), "workers"]):
        assert done.returncode == 0, done.stderr
    assert "lines" in (found := json.loads((tmp_path / "found.json").read_text())["workers"]), found


@in_fork
def test_arguments_that_are_refused_or_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = program_of(exported(tmp_path, "1x1 cpu", clip=0.5))
    for given, message in (
        ({"train_sampling_strategy": "batch_rebalance"}, "the plan says which rows a rank takes"),
        ({"debug": "underflow_overflow"}, "isn't finite stops training"),
        ({"max_grad_norm": 0.0}, "the plan clips to 0.5 before each step"),
    ):
        with pytest.raises(ParallelismError, match=message):
            settled(loop.arguments(str(tmp_path), **given), program)
    for name, value in (
        ("torch_empty_cache_steps", 1), ("eval_accumulation_steps", 2), ("ddp_find_unused_parameters", True),
        ("logging_nan_inf_filter", False), ("dataloader_drop_last", True),
    ):  # fmt: skip
        settled(loop.arguments(str(tmp_path), **{name: value}), program)
        assert f"autoplan: {name}: " in capsys.readouterr().err
    stream = options.Stream(loop.Tokens(36, 1))
    for steps, told in ((2, "the last rows of a stream are a step of their own"), (1, "")):
        tell_of_stream(loop.arguments(str(tmp_path), gradient_accumulation_steps=steps), stream, program)
        assert told in (said := capsys.readouterr().err) and bool(said) == bool(told)
    tell_of_stream(loop.arguments(str(tmp_path)), loop.Tokens(36, 1), program)
    assert not capsys.readouterr().err
    program.close()
