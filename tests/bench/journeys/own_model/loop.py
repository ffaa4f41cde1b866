import torch
from torch.utils.data import DataLoader, TensorDataset

import autoplan


def main():
    with open("input.txt", "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    rows = text[: len(text) // 33 * 33].view(-1, 33)[:74]  # the last batch is short
    loader = DataLoader(TensorDataset(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()), batch_size=16)
    with autoplan.load("out/gpt").program() as program:
        program.init_weights(seed=0)
        for epoch in range(3):
            steps = 0
            for batch in loader:
                loss = program.step(batch)
                program.optimizer.step()
                program.optimizer.zero_grad()
                steps += 1
            held_out = program.evaluate([part[:7] for part in batch])
            if program.rank == 0:
                print(f"epoch {epoch}: {steps} steps, loss {loss.item():.3f}, evaluated {held_out.item():.3f}")
        state = program.state_dict(full=True)
        if program.rank == 0:
            torch.save(state, "model.pt")


main()
