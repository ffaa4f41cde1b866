"""The three journeys."""

from __future__ import annotations

from tests.bench.journeys.journey import Journey, Step

TORCHRUN = ("torchrun", "--nproc-per-node", "2")
TEXT = ("--data", "input.txt", "--checkpoint-dir", "saved", "--steps")
LLAMA = ("--model", "tiny-llama", "--cluster-spec", "1x2 cpu", "--batch", "8", "--seq", "32", "--export", "out/llama")

OWN = Journey("own model", "own_model", (
    Step("planned, seen, verified, exported", ("python", "plan.py"),
         ("on 1x2 cpu", "step time", "transformer.h.0.mlp.c_fc", "equal to one device")),
    Step("trained", (*TORCHRUN, "out/gpt/train.py", *TEXT, "6"),
         ("step     6  loss",)),
    Step("resumed", (*TORCHRUN, "out/gpt/train.py", *TEXT, "8"),
         ("resumed from", "step     8  loss")),
    Step("trained and evaluated in an own loop", (*TORCHRUN, "loop.py"), ("epoch 2: 5 steps", "evaluated")),
    Step("brought back", ("python", "back.py"), ("All keys matched successfully",)),
), (("tests/starts/nanogpt.py", "gpt.py"),))  # fmt: skip
HUGGING_FACE = Journey("Hugging Face folder", "hugging_face", (
    Step("made", ("python", "make.py")),
    Step("planned, seen, exported", ("autoplan", "plan", *LLAMA), ("LlamaForCausalLM on 1x2 cpu", "step time")),
    Step("verified", ("autoplan", "verify", "out/llama"), ("equal to one device",)),
    Step("trained", ("autoplan", "train", "out/llama", *TEXT, "6"), ("step     6  loss",)),
    Step("evaluated, brought back", (*TORCHRUN, "evaluate.py"), ("transformers has",)),
))  # fmt: skip
TRAINER = Journey("Trainer", "trainer", (
    Step("made", ("python", "make.py")),
    Step("planned, exported", ("python", "script.py", "plan")),
    Step("trained and evaluated", (*TORCHRUN, "script.py"), ("eval_loss", "evaluated")),
    Step("brought back", ("python", "back.py"), ("GPT2LMHeadModel",)),
))  # fmt: skip
JOURNEYS = {one.name: one for one in (OWN, HUGGING_FACE, TRAINER)}
