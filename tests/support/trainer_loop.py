"""transformers' example run_clm.py, shrunk: a small Llama of its own, tokens that are drawn.

    trainer_loop.py FOLDER DATA_RANKS [PLAN [CHECKPOINT]]     with a plan, under torchrun
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

ROWS, TOKENS = 8, 16


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    ))  # fmt: skip


class Tokens(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        self.ids = torch.randint(0, 64, (count, TOKENS), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Steps(TrainerCallback):
    """A callback of one's own."""

    count = 0

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.count += 1


def arguments(folder: str, ranks: int = 1, **further: object) -> TrainingArguments:
    given: dict = {
        "per_device_train_batch_size": ROWS // 2 // ranks, "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": ROWS // ranks, "learning_rate": 1e-2, "weight_decay": 0.1,
        "max_grad_norm": 0.5, "warmup_steps": 2, "num_train_epochs": 2, "logging_steps": 1, "eval_strategy": "steps",
        "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss",
        "include_num_input_tokens_seen": "all", "use_cpu": True, "report_to": "none", "seed": 7, "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(folder, **given | further)


def main(folder: str, ranks: str, plan: str | None = None, checkpoint: str | None = None) -> None:
    if plan is None:
        from transformers import Trainer  # noqa: PLC0415  the lines that a plan changes

        own = {}
    else:
        from autoplan.integrations.transformers import Trainer  # noqa: PLC0415

        own = {"plan": plan}
    steps = Steps()
    trainer = Trainer(
        model=small_llama(), args=arguments(folder, int(ranks)), train_dataset=Tokens(36, 1),
        eval_dataset=Tokens(13, 2), callbacks=[steps, EarlyStoppingCallback(5)], **own,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(f"{folder}/final")
    trainer.evaluate()
    if trainer.is_world_process_zero():
        kept = ("loss", "grad_norm", "learning_rate", "eval_loss", "total_flos", "num_input_tokens_seen")
        lines = [{name: line[name] for name in kept if name in line} for line in trainer.state.log_history]
        Path(folder, "found.json").write_text(json.dumps({"steps": steps.count, "lines": lines}))


if __name__ == "__main__":
    main(*sys.argv[1:])
