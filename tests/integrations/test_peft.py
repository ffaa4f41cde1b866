"""A model of peft in a loop of Accelerate and in transformers' Trainer: its adapters are saved as peft reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import transformers
from torch import nn

from autoplan.integrations.accelerate import Accelerator
from autoplan.integrations.transformers import Trainer, training_of
from tests.support.forked import in_fork
from tests.support.planning import parallelize_alone

TOKENS, ROWS = 8, 4


def base() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


LORA = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def adapted() -> nn.Module:
    return peft.get_peft_model(base(), LORA)


def prompted() -> nn.Module:
    """peft computes what it saves of a prompt from the module, whatever state it is given."""
    return peft.get_peft_model(base(), peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))


def added() -> nn.Module:
    """By transformers' own method: the module stays of its class."""
    model = base()
    model.add_adapter(LORA)
    return model


def adapted_twice() -> nn.Module:
    model = adapted()
    model.add_adapter("other", LORA)
    return model


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(32, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def arguments(folder: Path) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=ROWS, learning_rate=1e-1, report_to=[], use_cpu=True,
        save_strategy="no", lr_scheduler_type="constant",
    )  # fmt: skip


def loss_by_peft(folder: Path) -> torch.Tensor:
    assert not (folder / "model.safetensors").exists()
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(base(), str(folder))(**batch()).loss


@pytest.mark.parametrize("make", [adapted_twice, prompted, added])
@in_fork
def test_adapters_are_saved_as_peft_reads_them(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    model, args = make(), arguments(tmp_path)
    plan = parallelize_alone(model, "1x1 cpu", batch(), training=training_of(args)).export(tmp_path / "plan")
    accelerator = Accelerator(plan=plan, split_batches=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-1, weight_decay=0.0)
    planned, optimizer = accelerator.prepare(model, optimizer)
    before = planned(**batch())
    accelerator.backward(before.loss)
    optimizer.step()
    said = {"selected_adapters": ["default"]} if make is adapted_twice else {}
    accelerator.unwrap_model(planned).save_pretrained(tmp_path / "saved", is_main_process=True, **said)
    after = planned.eval()(**batch()).loss
    accelerator.end_training()
    assert after < before.loss
    assert not (tmp_path / "saved" / "other").exists()
    torch.testing.assert_close(loss_by_peft(tmp_path / "saved"), after)


@in_fork
def test_a_trainer_saves_adapters(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, args = adapted(), arguments(tmp_path / "run")
    plan = parallelize_alone(model, "1x1 cpu", batch(), training=training_of(args)).export(tmp_path / "plan")
    data = [{name: value[row] for name, value in batch().items()} for row in range(ROWS)]
    trainer = Trainer(plan=plan, model=model, args=args, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    found = trainer.evaluate()["eval_loss"]
    assert loss_by_peft(tmp_path / "saved").item() == pytest.approx(found, rel=1e-5)


@in_fork
def test_injected_adapters_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """peft keeps no configuration of them that it could save."""
    model = peft.inject_adapter_in_model(LORA, base())
    plan = parallelize_alone(model, "1x1 cpu", batch(), training=training_of(arguments(tmp_path)))
    accelerator = Accelerator(plan=plan.export(tmp_path / "plan"), split_batches=True)
    planned = accelerator.prepare(model)
    assert "adapters of peft's were injected, without a configuration to save" in capsys.readouterr().err
    planned.save_pretrained(tmp_path / "saved")
    accelerator.end_training()
    assert (tmp_path / "saved" / "model.safetensors").exists()
