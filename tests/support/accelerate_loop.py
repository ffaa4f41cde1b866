"""Accelerate's example nlp_example.py, shrunk: a small BERT of its own, sentence pairs that are drawn.

    accelerate_loop.py RESULTS STATE [PLAN]        with a plan, under torchrun

STATE is a folder to save to after the first epoch; where it is there already, the loop goes on from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup, set_seed

ROWS, TOKENS, EPOCHS = 8, 12, 2


def small_bert() -> BertForSequenceClassification:
    torch.manual_seed(3)
    return BertForSequenceClassification(BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=TOKENS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )).double()  # fmt: skip


class Pairs(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, 64, (count, TOKENS), generator=generator)
        self.lengths = torch.randint(4, TOKENS + 1, (count,), generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        mask = (torch.arange(TOKENS) < self.lengths[i]).long()
        return {"input_ids": self.ids[i] * mask, "attention_mask": mask, "labels": self.labels[i]}


def main(results: str, state: str, plan: str | None = None) -> None:
    if plan is None:
        from accelerate import Accelerator  # noqa: PLC0415  the two lines that a plan changes

        accelerator = Accelerator(cpu=True)
    else:
        from autoplan.integrations.accelerate import Accelerator  # noqa: PLC0415

        accelerator = Accelerator(plan=plan, split_batches=True)
    set_seed(7)
    model = small_bert()
    train = DataLoader(Pairs(32, 1), shuffle=True, batch_size=ROWS, drop_last=True)
    evaluated = DataLoader(Pairs(13, 2), shuffle=False, batch_size=ROWS)
    optimizer = AdamW(params=model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=EPOCHS * len(train))
    model, optimizer, train, evaluated, schedule = accelerator.prepare(model, optimizer, train, evaluated, schedule)
    first = int(Path(state).is_dir())
    if first:
        accelerator.load_state(state)
    found = []
    for epoch in range(first, EPOCHS):
        model.train()
        for batch in train:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            found += [loss.item(), float(norm), schedule.get_last_lr()[0]]
        model.eval()
        for batch in evaluated:
            with torch.no_grad():
                outputs = model(**batch)
            found.append(outputs.loss.item())
        if epoch == 0:
            accelerator.save_state(state)
            accelerator.wait_for_everyone()
    whole = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        Path(results).write_text(json.dumps(found))
        torch.save(whole, f"{results}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
