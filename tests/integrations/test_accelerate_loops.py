"""A plan in a loop of Accelerate: its own example, shrunk, takes the steps that it takes on one device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader

import autoplan
from autoplan.errors import InputsError, ParallelismError
from autoplan.integrations.accelerate import Accelerator
from autoplan.integrations.program_model import PlannedModel
from tests.support import accelerate_loop as loop
from tests.support.forked import in_fork, run_ranks, run_script
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

TRAINING = autoplan.Training(precision="fp64", learning_rate=1e-2, weight_decay=0.1)
WAYS = {"dp": {"dp": 2, "micro_batch": 2}, "tp": {"tp": 2}, "pp": {"pp": 2}}


def exported(folder: Path, pinned: Mapping[str, int], cluster: str = "1x2 cpu", *, masked: bool = True) -> Path:
    batch = {name: value.expand(loop.ROWS, *value.shape) for name, value in loop.Pairs(1, 0)[0].items()}
    if not masked:
        del batch["attention_mask"]
    model, how = loop.small_bert(), autoplan.Parallelism(**pinned)  # type: ignore[arg-type]
    plan = parallelize_alone(model, cluster, batch, training=TRAINING, parallelism=how, effort="fast")
    return plan.export(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one device finds, without a plan."""
    folder = tmp_path_factory.mktemp("one")
    script = Path(shutil.copy(loop.__file__, folder))
    done = run_script(script, [str(folder / "found.json"), str(folder / "state")])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(("way", "again"), sampled([("dp", False), *((way, True) for way in WAYS)], [("dp", False)]))
def test_the_example_is_one_device_s(way: str, again: bool, one: Path, tmp_path: Path) -> None:
    """Losses, norms, rates and evaluations of two epochs; and of the second alone, from the saved state."""
    plan = exported(tmp_path / "plan", WAYS[way])
    script = Path(shutil.copy(loop.__file__, tmp_path))
    wanted = json.loads((one / "found.json").read_text())
    for count in (len(wanted), len(wanted) // 2)[: 1 + again]:
        given = [str(tmp_path / "found.json"), str(tmp_path / "state"), str(plan)]
        for done in run_ranks(script, 2, given):
            assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "found.json").read_text())
        assert found == pytest.approx(wanted[-count:], rel=1e-9)
        whole, known = (torch.load(folder / "found.json.pt") for folder in (tmp_path, one))
        for name, value in known.items():
            torch.testing.assert_close(whole[name], value, rtol=1e-7, atol=1e-9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On one device, of a batch without a mask."""
    return exported(tmp_path_factory.mktemp("alone") / "plan", {}, "1x1 cpu", masked=False)


@in_fork
def test_what_a_plan_decides_is_refused(alone: Path) -> None:
    for given, message in (
        ({"gradient_accumulation_steps": 4}, "microbatches accumulate"),
        ({"mixed_precision": "bf16"}, "the plan's precision is 'fp64'"),
        ({"fsdp_plugin": object()}, "the plan says how the model is split"),
        ({"dynamo_backend": "inductor"}, "the plan says what is compiled"),
    ):  # fmt: skip
        with pytest.raises(ParallelismError, match=message):
            Accelerator(plan=alone, **given)
    for name, value, message in (
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "gradient_accumulation_steps=4: the plan's microbatches"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "dynamo_backend=INDUCTOR: the plan says what is compiled"),
    ):  # as `accelerate launch` says them
        with pytest.MonkeyPatch.context() as patched, pytest.raises(ParallelismError, match=message):
            patched.setenv(name, value)
            Accelerator(plan=alone)


@in_fork
def test_what_a_loop_may_not_do_is_told(alone: Path) -> None:
    accelerator, model = Accelerator(plan=alone), loop.small_bert()
    with pytest.raises(InputsError, match="no model yet"):
        accelerator.prepare_optimizer(AdamW(model.parameters()))
    planned = accelerator.prepare(model)
    assert isinstance(planned, PlannedModel) and accelerator.unwrap_model(planned) is planned
    with pytest.raises(ParallelismError, match="second model"):
        accelerator.prepare(nn.Linear(2, 2))
    for optimizer, message in (
        (SGD(model.parameters(), 0.1), "the loop's optimizer SGD"),
        (AdamW(model.parameters(), 1e-2, weight_decay=0.2), "weight_decay=0.2"),
        (AdamW(nn.Linear(2, 2).parameters()), "isn't the model's"),
        (AdamW(model.classifier.parameters(), 1e-2, weight_decay=0.1), r"embeddings.*: the plan trains it.*plan again"),
    ):
        with pytest.raises(ParallelismError, match=message):
            accelerator.prepare(optimizer)
    model.classifier.requires_grad_(False)
    with pytest.raises(ParallelismError, match=r"classifier\.\w+: the plan trains it.*or it is frozen"):
        accelerator.prepare(AdamW(model.parameters(), 1e-2, weight_decay=0.1))
    model.classifier.requires_grad_(True)
    with pytest.raises(InputsError, match="give batch_size=8"):
        accelerator.prepare(DataLoader(loop.Pairs(32, 1), batch_size=9))
    batch = next(iter(accelerator.prepare(DataLoader(loop.Pairs(8, 1), batch_size=8))))
    del batch["attention_mask"]
    outputs = planned(**batch)
    with pytest.raises(AttributeError, match="loss alone"):
        _ = outputs.logits
    with pytest.raises(InputsError, match=r"a loss times 0\.5"):
        accelerator.backward(outputs.loss / 2)
    with pytest.raises(InputsError, match="lie in parts"):
        torch.nn.utils.clip_grad_norm_(planned.parameters(), 1.0)
    with pytest.raises(InputsError, match="the values of before"):
        model.save_pretrained("somewhere")
    accelerator.program.optimizer.zero_grad()
    with pytest.raises(InputsError, match="the plan's inputs are"):
        planned(**batch, position_ids=torch.zeros(8, loop.TOKENS))
    accelerator.end_training()


@in_fork
def test_a_mask_that_masks_nothing_may_be_given(alone: Path) -> None:
    ids = torch.zeros(loop.ROWS, loop.TOKENS, dtype=torch.int64)
    accelerator = Accelerator(plan=alone)
    model = accelerator.prepare(loop.small_bert()).eval()
    given = {"input_ids": ids, "labels": ids[:, 0]}
    with_mask = model(**given, attention_mask=torch.ones_like(ids))
    assert with_mask.loss == model(**given)["loss"] == model(ids, ids[:, 0])
    with pytest.raises(InputsError, match="attention_mask among the example_inputs"):
        model(**given, attention_mask=torch.eye(loop.ROWS, loop.TOKENS))
    accelerator.end_training()
