import torch
from transformers import AutoModelForCausalLM

import autoplan


def main():
    ids = torch.randint(0, 256, (8, 32), generator=torch.Generator().manual_seed(0))
    with autoplan.load("out/llama").program() as program:
        program.load_checkpoint(program.latest_checkpoint("saved"))
        loss = program.evaluate({"input_ids": ids, "labels": ids}).item()
        program.save_weights("trained")
        if program.rank == 0:
            model = AutoModelForCausalLM.from_pretrained("trained").eval()
            print(f"evaluated {loss:.6f}, transformers has {model(input_ids=ids, labels=ids).loss.item():.6f}")


main()
