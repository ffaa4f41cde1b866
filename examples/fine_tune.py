"""Fine-tuning from folder to folder, on two CPU cores in a minute: ``python examples/fine_tune.py``.

A folder that ``save_pretrained`` wrote is planned for four processes, trained under ZeRO-3 and evaluated every ten
steps, saved as a checkpoint, and trained on from it under another layout, a pipeline of tensor-parallel stages. Then
``save_weights`` writes a folder that ``from_pretrained`` reads. Ends with status 1 where its logits are further than
1e-5 from those of the same model trained on one device with torch's own optimizer, or an evaluation is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import autoplan
from autoplan.export.folder import program_spec
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.elastic.launch import run_script

ROOT = Path(__file__).resolve().parent.parent
TEXT, OUT = ROOT / "examples" / "data" / "coriolanus.txt", ROOT / "demo" / "fine_tune"
RANKS, TOLERANCE, EVALUATE_EVERY = 4, 1e-5, 10
LEGS = (  # the folder of a plan, its layout, and the step that it trains to
    ("zero3", autoplan.Parallelism(dp=4, tp=1, pp=1, zero=3), 20),
    ("stages", autoplan.Parallelism(dp=1, tp=2, pp=2), 40),
)
TRAINING = autoplan.Training(optimizer="adamw", precision="fp32", learning_rate=1e-4, clip_grad_norm=1.0)

Batch = dict[str, torch.Tensor]


def pretrained(folder: Path) -> None:
    """A small GPT-2 with random weights, as one finds a model on the hub."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4, use_cache=False, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def plans(base: Path, out: Path) -> autoplan.Plan:
    """The model of a folder planned and exported for each layout; the last of the plans."""
    model = AutoModelForCausalLM.from_pretrained(base)
    batch = {name: torch.zeros(8, 32, dtype=torch.int64) for name in ("input_ids", "labels")}
    for name, parallelism, _ in LEGS:
        plan = autoplan.parallelize(model, f"1x{RANKS} cpu", batch, training=TRAINING, parallelism=parallelism)
        plan.export(out / name)
        print(f"planned {name}: {plan}", flush=True)
    return plan


def batches(spec: object) -> tuple[Callable[[int], Batch], Batch]:
    """What training reads at each step, and what it is evaluated on."""
    return batch_source(spec, TEXT, 0), batch_source(spec, TEXT, 1)(0)  # type: ignore[arg-type]


def train(out: Path, leg: int) -> None:
    """One layout's steps, on each of the processes that torchrun started."""
    name, _, last = LEGS[leg]
    with autoplan.load(out / name).program() as program:
        batch, held_out = batches(program.spec)
        if leg == 0:
            program.load_weights(out / "base")
        else:
            program.load_checkpoint(out / "checkpoints" / f"step-{LEGS[leg - 1][2]}")
        for step in range(program.steps + 1, last + 1):
            loss = program.step(batch(step - 1))
            program.optimizer.step()
            if step % EVALUATE_EVERY == 0:
                told(program.rank, out, step, loss, program.evaluate(held_out))
        program.save_checkpoint(out / "checkpoints" / f"step-{last}")
        if leg == len(LEGS) - 1:
            program.save_weights(out / "trained")


def told(rank: int, out: Path, step: int, loss: torch.Tensor, evaluation: torch.Tensor) -> None:
    if rank == 0:
        print(f"step {step:3d}  loss {loss.item():.6f}  evaluation {evaluation.item():.6f}", flush=True)
        with (out / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "evaluation": evaluation.item()}) + "\n")


def torchrun(out: Path, leg: int) -> None:
    print(f"\ntorchrun --nproc-per-node {RANKS}: {LEGS[leg][0]}, to step {LEGS[leg][2]}", flush=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": paths}
    subprocess.run([*command, __file__, str(out), str(leg)], check=True, env=environment)


def train_alone(base: Path, plan: autoplan.Plan) -> tuple[GPT2LMHeadModel, list[float]]:
    """The same on one device, with torch's own optimizer: the model, and its evaluations."""
    model = AutoModelForCausalLM.from_pretrained(base).train()
    optimizer = torch.optim.AdamW(model.parameters(), TRAINING.learning_rate)
    batch, held_out = batches(program_spec(plan.record))
    found = []
    for step in range(1, LEGS[-1][2] + 1):
        optimizer.zero_grad()
        model(**batch(step - 1)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING.clip_grad_norm)
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                found.append(model.eval()(**held_out).loss.item())
            model.train()
    return model.eval(), found


def compare(out: Path, plan: autoplan.Plan) -> bool:
    """Whether the folder that was written is the model that one device has trained, to the tolerance."""
    alone, wanted = train_alone(out / "base", plan)
    found = [json.loads(line)["evaluation"] for line in (out / "evaluations.jsonl").read_text().splitlines()]
    ours = AutoModelForCausalLM.from_pretrained(out / "trained").eval()
    tokens = batches(program_spec(plan.record))[1]["input_ids"]
    with torch.no_grad():
        logits = (ours(tokens).logits - alone(tokens).logits).abs().max().item()
    evaluations = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    equal = logits <= TOLERANCE and evaluations <= TOLERANCE
    print(f"\nfrom_pretrained({out / 'trained'}): logits within {logits:.1e} of one device's, evaluations within")
    print(f"{evaluations:.1e}: {'equal' if equal else 'NOT equal'} to {TOLERANCE:g}")
    return equal


def main(out: Path = OUT) -> int:
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    pretrained(out / "base")
    plan = plans(out / "base", out)
    for leg in range(len(LEGS)):
        torchrun(out, leg)
    return 0 if compare(out, plan) else 1


if __name__ == "__main__":
    if len(sys.argv) == 3 and "WORLD_SIZE" in os.environ:
        run_script(lambda: train(Path(sys.argv[1]), int(sys.argv[2])))
    else:
        sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT))
