import sys

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, TrainingArguments

import autoplan
from autoplan.integrations.transformers import Trainer, training_of


class Text(Dataset):
    def __init__(self, first, last):
        with open("input.txt", "rb") as file:
            data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        self.rows = data[: len(data) // 32 * 32].view(-1, 32)[first:last]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main():
    model = AutoModelForCausalLM.from_pretrained("tiny-gpt2")
    args = TrainingArguments(
        "trained", per_device_train_batch_size=8, num_train_epochs=2, learning_rate=1e-3, logging_steps=4,
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, report_to=[], use_cpu=True,
    )  # fmt: skip
    if "plan" in sys.argv:
        rows = torch.zeros(16, 32, dtype=torch.int64)
        batch = {"input_ids": rows, "labels": rows}
        plan = autoplan.parallelize(model, "1x2 cpu", batch, training=training_of(args), parallelism="ddp")
        plan.export("out/plan")
        return
    trainer = Trainer(plan="out/plan", model=model, args=args, train_dataset=Text(0, 74), eval_dataset=Text(74, 95))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model("final")
    if trainer.is_world_process_zero():
        print(f"evaluated {before:.3f}, then {after:.3f}")


if __name__ == "__main__":
    main()
