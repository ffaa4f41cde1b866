import torch
from gpt import GPT, GPTConfig

import autoplan


def make_model():
    return GPT(GPTConfig(block_size=32, vocab_size=256, n_layer=4, n_embd=64, dropout=0.1, bias=True))


if __name__ == "__main__":
    x = torch.zeros(16, 32, dtype=torch.int64)
    plan = autoplan.parallelize(make_model, "1x2 cpu", (x, x))
    print(plan.report())
    print(plan.explain("transformer.h.0.mlp.c_fc"))
    print(plan.verify())
    plan.export("out/gpt")
