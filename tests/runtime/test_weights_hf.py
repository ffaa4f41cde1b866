"""From Hugging Face and back: what save_pretrained wrote is loaded, what save_weights writes from_pretrained reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.errors import WeightsError
from autoplan.options import Parallelism, Training
from autoplan.runtime.weights.manifest import MANIFEST
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled

TRAINING = Training(compile=False)
SPLIT = Parallelism(dp=2, tp=2, pp=1)
MODELS = {"gpt2": zoo.gpt2, "llama": zoo.llama, "bert": zoo.bert, "mixtral": zoo.mixtral}


def exported(
    module: nn.Module, batch: object, folder: Path, parallelism: Parallelism = SPLIT, **options: object
) -> str:
    plan = parallelize_unproved(module, "1x4 cpu", batch, training=TRAINING, parallelism=parallelism, **options)
    plan.export(folder)
    return str(folder)


def passed_on(rank: int, world: int, plan: str, source: str, target: str, most: int) -> Mapping[str, Tensor]:
    with autoplan.load(plan).program() as program:
        program.load_weights(source)
        program.save_weights(target, max_file_bytes=most)
        return dict(program.full_state_dict())


def same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", sampled(MODELS, ["mixtral"]))
def test_weights_go_through_a_program_and_come_back(pool: RankPool, tmp_path: Path, name: str) -> None:
    """Several files each way; a fused projection in GPT-2, experts one by one in Mixtral's files, ties in three."""
    module, batch = MODELS[name](2), zoo.small(name)[1]
    module.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    plan = exported(module, batch, tmp_path / "plan")
    ours = tmp_path / "ours"
    found = pool.run(passed_on, plan, str(tmp_path / "theirs"), str(ours), 20_000)[0]
    same(found, module.state_dict())
    assert len(list(ours.glob("*.safetensors"))) > 2
    assert {"config.json", MANIFEST} <= {path.name for path in ours.iterdir()}
    again, said = type(module).from_pretrained(ours, output_loading_info=True)
    assert not any(said.values()), said
    same(again.state_dict(), module.state_dict())


def test_weights_of_the_model_without_its_head_are_enough_where_that_is_tied(pool: RankPool, tmp_path: Path) -> None:
    module, batch, _ = zoo.small("gpt2", layers=2)
    module.transformer.save_pretrained(tmp_path / "theirs")
    plan = exported(module, batch, tmp_path / "plan")
    found = pool.run(passed_on, plan, str(tmp_path / "theirs"), str(tmp_path / "ours"), 10**9)[0]
    same(found, module.state_dict())


def refused(rank: int, world: int, plan: str, source: str) -> str:
    with autoplan.load(plan).program() as program:
        try:
            program.load_weights(source)
        except WeightsError as error:
            return str(error)
    return ""


def test_weights_without_a_head_that_is_not_tied_are_not_enough(pool: RankPool, tmp_path: Path) -> None:
    module, batch = zoo.llama(2), zoo.small("llama")[1]
    module.model.save_pretrained(tmp_path / "theirs")
    for said in pool.run(refused, exported(module, batch, tmp_path / "plan"), str(tmp_path / "theirs")):
        assert "it lacks the parameter lm_head.weight of shape (96, 32)" in said


class Spare(nn.Module):
    """A layer that is never run, tied to itself, and a buffer that nothing reads."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 12))
        self.spare, self.again = nn.Linear(12, 8), nn.Linear(12, 8)
        self.again.weight = self.spare.weight
        self.register_buffer("seen", torch.arange(3))
        self.register_buffer("passing", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def spares(rank: int, world: int, plan: str, other: str, source: str, folder: str) -> list[Mapping[str, Tensor]]:
    """Whole state dicts: the plan's; loaded, saved and loaded from the checkpoint, and from the saved weights."""
    with autoplan.load(plan).program() as program:
        program.init_weights()
        found = [dict(program.full_state_dict())]
        program.load_weights(source)
        program.save_checkpoint(Path(folder) / "checkpoint")
        program.save_weights(Path(folder) / "weights")
        found.append(dict(program.full_state_dict()))
    with autoplan.load(other).program() as program:
        program.load_checkpoint(Path(folder) / "checkpoint")
        found.append(dict(program.full_state_dict()))
        program.load_weights(Path(folder) / "weights")
        found.append(dict(program.full_state_dict()))
    return found


def test_what_the_program_never_reads_stays_in_the_state_dict(pool: RankPool, tmp_path: Path) -> None:
    module = Spare()
    module.seen += 5
    batch, loss = (torch.randn(8, 16), torch.randint(0, 12, (8,))), nn.functional.cross_entropy
    plans = [
        exported(module, batch, tmp_path / f"plan{i}", parallelism, loss_fn=loss)
        for i, parallelism in enumerate((Parallelism(dp=4, tp=1, pp=1, zero=3), Parallelism(dp=1, tp=4, pp=1)))
    ]
    tensors = {name: value.clone() for name, value in module.state_dict().items()}
    (tmp_path / "theirs").mkdir()
    torch.save(tensors, tmp_path / "tensors.pt")
    found = pool.run(spares_from_file, *plans, str(tmp_path / "tensors.pt"), str(tmp_path))[0]
    for state in found:
        same(state, tensors)


def spares_from_file(rank: int, world: int, plan: str, other: str, source: str, folder: str) -> list:
    return spares(rank, world, plan, other, torch.load(source), folder)
