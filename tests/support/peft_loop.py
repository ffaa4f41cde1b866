"""A small Llama with LoRA adapters of peft's in transformers' Trainer.

    peft_loop.py FOLDER DATA_RANKS [PLAN]     with a plan, under torchrun
"""

from __future__ import annotations

import sys

import peft
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

ROWS, TOKENS = 8, 8


def adapted() -> peft.PeftModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=TOKENS, use_cache=False,
    ))  # fmt: skip
    found = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)  # not zero, or A has no gradient in the first step
    return found


class Tokens(Dataset):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(32, (count, TOKENS), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def arguments(folder: str, ranks: int = 1) -> TrainingArguments:
    return TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=ROWS // ranks, learning_rate=1e-2, weight_decay=0.1,
        max_grad_norm=0.5, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, seed=7,
    )  # fmt: skip


def main(folder: str, ranks: str, plan: str | None = None) -> None:
    if plan is None:
        from transformers import Trainer  # noqa: PLC0415  the lines that a plan changes

        own = {}
    else:
        from autoplan.integrations.transformers import Trainer  # noqa: PLC0415

        own = {"plan": plan}
    trainer = Trainer(model=adapted(), args=arguments(folder, int(ranks)), train_dataset=Tokens(4 * ROWS), **own)
    trainer.train()
    trainer.save_model(f"{folder}/final")


if __name__ == "__main__":
    main(*sys.argv[1:])
