"""What autoplan does, in a few minutes on two CPU cores: ``make demo``.

Plans Llama-3-70B for 64 GPUs and prints the report. Then plans a small Llama for four processes, verifies the sharded
program against one device, exports it to demo/, trains it with torchrun on the bytes of a play, and trains the same
model on one device beside it. Ends with status 1 where a step's losses differ by more than 1e-3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.export.folder import program_spec
from autoplan.models.named import resolve_model
from autoplan.runtime.data.sources import batch_source

ROOT = Path(__file__).resolve().parent.parent
TEXT, OUT = ROOT / "examples" / "data" / "coriolanus.txt", ROOT / "demo"
STEPS, RANKS, TOLERANCE = 30, 4, 1e-3
QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
TRAINING = autoplan.Training(optimizer="adamw", precision="fp32", learning_rate=1e-3, clip_grad_norm=1.0)

Batch = dict[str, torch.Tensor]


def title(text: str) -> float:
    """Prints a heading and says when it was."""
    print(f"\n{'-' * 118}\n{text}\n{'-' * 118}", flush=True)
    return time.perf_counter()


def plan_large() -> None:
    """Llama-3-70B, 4 million tokens a step, on 8 nodes of 8 H100."""
    start = title('Llama-3-70B for "8x8 h100-sxm", on the meta device')
    request = resolve_model("hf:llama-3-70b", batch=512, seq=8192)
    training = autoplan.Training(precision="bf16-mixed", clip_grad_norm=1.0)
    plan = autoplan.parallelize(request.model, "8x8 h100-sxm", request.example_inputs, training=training)
    print(plan.report())
    print(f"planned in {time.perf_counter() - start:.1f} s", flush=True)


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=128,
            use_cache=False,
        )
    )


def plan_small(model: LlamaForCausalLM) -> autoplan.Plan:
    """Plans, verifies and exports; the model's weights are written beside the program, and train.py starts there."""
    title('A small Llama for "1x4 cpu": plan, verify, export')
    batch = {name: torch.zeros(16, 128, dtype=torch.int64) for name in ("input_ids", "labels")}
    plan = autoplan.parallelize(model, f"1x{RANKS} cpu", batch, training=TRAINING)
    print(f"{plan}\n{plan.verify()}")
    shutil.rmtree(OUT, ignore_errors=True)
    plan.export(OUT)
    print(f"wrote {', '.join(sorted(str(path.relative_to(ROOT)) for path in OUT.iterdir()))}", flush=True)
    return plan


def train_sharded() -> list[float]:
    """The losses of train.py on four processes."""
    log = OUT / "losses.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), str(OUT / "train.py")]
    command += ["--steps", str(STEPS), "--data", str(TEXT), "--seed", "0", "--metrics", str(log)]
    title(f"torchrun --nproc-per-node {RANKS} demo/train.py --steps {STEPS} --data {TEXT.relative_to(ROOT)} …")
    subprocess.run(command, check=True, env={**os.environ, **QUIET}, stdout=subprocess.DEVNULL)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


def train_alone(model: LlamaForCausalLM, batches: Callable[[int], Batch]) -> list[float]:
    """The losses of the user's own module on one device: same weights, same batches, torch's own optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), TRAINING.learning_rate)  # the rest as torch has it, there as here
    losses = []
    for step in range(STEPS):
        loss = model(**batches(step)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING.clip_grad_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(sharded: list[float], alone: list[float]) -> bool:
    """Prints both losses of every step; whether all are equal to 1e-3."""
    print(f"{'step':>4}  {'four processes':>14}  {'one device':>10}  difference")
    equal = len(sharded) == len(alone) == STEPS
    for step, (ours, theirs) in enumerate(zip(sharded, alone, strict=True), start=1):
        difference = abs(ours - theirs) / abs(theirs)
        equal &= difference <= TOLERANCE
        mark = "" if difference <= TOLERANCE else "  <--"
        print(f"{step:4d}  {ours:14.6f}  {theirs:10.6f}  {difference:10.1e}{mark}")
    print(f"\n{'equal' if equal else 'NOT equal'} to {TOLERANCE:g} relative at every one of {STEPS} steps")
    return equal


def main() -> int:
    torch.set_num_threads(1)
    start = time.perf_counter()
    plan_large()
    model = small_llama()
    plan = plan_small(model)
    sharded = train_sharded()
    batches = batch_source(program_spec(plan.record), TEXT, 0)
    equal = compare(sharded, train_alone(model.train(), batches))
    print(f"everything took {time.perf_counter() - start:.0f} s")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
