"""A Llama with low-rank adapters beside frozen weights: equal to one device however it lies, its checkpoints go from
one plan to another, and its adapters are written alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.bench.recipes.adapters import with_adapters
from tests.bench.recipes.shapes import ATTENTION
from tests.support.planning import parallelize_alone

PLANS = {
    "tp=2": Parallelism(tp=2, dp=2, pp=1, zero=0),
    "zero3": Parallelism(dp=4, tp=1, pp=1, zero=3),
    "zero1": Parallelism(dp=4, tp=1, pp=1, zero=1),
    "pp=2": Parallelism(pp=2, dp=2, tp=1, zero=0),
    "pp=2 tp=2": Parallelism(pp=2, tp=2, dp=1),
    "cp=2 zero3": Parallelism(cp=2, dp=2, tp=1, pp=1, zero=3),
}


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    net = with_adapters(transformers.LlamaForCausalLM(config), ATTENTION, 2, 4)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net


def planned(name: str, precision: str = "fp32") -> autoplan.Plan:
    ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    training = Training(precision=precision, compile=False)
    return parallelize_alone(llama(), "1x4 cpu", batch, training=training, parallelism=PLANS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_step_is_that_of_one_device(name: str) -> None:
    planned(name).verify()


def stepped(rank: int, world: int, folder: str, saved: str, alone: str) -> Mapping[str, Tensor]:
    with autoplan.load(folder).program() as program:
        program.init_weights()
        ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(0))
        program.step({"input_ids": ids, "labels": ids})
        program.optimizer.step()
        program.save_checkpoint(saved)
        program.save_weights(alone, trained_only=True)
        return dict(program.full_state_dict())


def resumed(rank: int, world: int, folder: str, saved: str) -> Mapping[str, Tensor]:
    with autoplan.load(folder).program() as program:
        assert isinstance(program, Program)
        program.load_checkpoint(saved)
        return dict(program.full_state_dict())


@pytest.mark.slow
def test_checkpoints_go_between_plans_and_adapters_are_written_alone(pool: RankPool, tmp_path: Path) -> None:
    """In bfloat16 with float32 masters: frozen weights stay what was loaded, in the dtype of the computation."""
    folders = {name: tmp_path / name.replace(" ", "-") for name in ("zero3", "pp=2 tp=2")}
    for name, folder in folders.items():
        planned(name, "bf16-mixed").export(folder)
    saved, alone = str(tmp_path / "saved"), tmp_path / "alone"
    before = pool.run(stepped, str(folders["zero3"]), saved, str(alone))[0]
    after = pool.run(resumed, str(folders["pp=2 tp=2"]), saved)[0]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    start = dict(llama().named_parameters())
    for name, parameter in start.items():
        moved = not torch.equal(before[name].float(), parameter.detach().to(torch.bfloat16).float())
        assert moved == parameter.requires_grad, name
    written = load_file(alone / "model.safetensors")
    assert written.keys() == {name for name, parameter in start.items() if parameter.requires_grad}
    assert all(torch.equal(written[name], before[name]) for name in written)
