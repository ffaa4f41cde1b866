"""Losses of a small Llama on this repository's text, trained under each asynchronous system and synchronously.

    python -m tests.bench.convergence [--steps 500] [--system local-sgd] [--write docs/appendix/convergence.md]

Every system starts from the same values and sees the same batches, on four ranks, at its documented settings. Status 1
where one diverges: its held-out loss isn't finite, or isn't below that of a model that knows how often each byte comes.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.search.space.systems import ASYNCHRONOUS
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone

ROOT = Path(__file__).parents[2]
RANKS, ROWS, LENGTH, BYTES, LAYERS, LAST, LIMIT_S = 4, 16, 64, 256, 4, 20, 1800.0
SYNCHRONOUS, COMPENSATED = "ddp", "async-server, delays compensated"
KINDS = (*ASYNCHRONOUS, COMPENSATED)
ARRIVING = ("async-server", "bounded-server")
UNCLIPPED = ("pipedream", "backup-workers", *ARRIVING, COMPENSATED)
"""Whose updates are by gradients without one norm: stages' of different batches, or some workers' alone."""
TRAINING = autoplan.Training(learning_rate=3e-3, weight_decay=0.0, clip_grad_norm=1.0, compile=False)
TITLE = """# Convergence of asynchronous systems and compressed gradients

Written by `make convergence`: a Llama of four layers, 64 wide, on this repository's pages, byte by byte, four ranks,
{steps} steps of AdamW (of LAMB for `1bit-lamb`) at {rate:g} with batches of {rows} x {length} bytes, the same for each.
A loss is in nats a byte: of the last {last} training batches, and of text that wasn't trained on. A model that knows
how often each byte comes has {bytes:.3f}. Gradients are clipped to a norm of 1, but for `pipedream`, `backup-workers`,
servers that apply gradients as they arrive, and the 1-bit kinds, whose warm-up is a fifth of the steps. These servers
make four updates in a step, at half the learning rate. Ranks are two nodes' where gradients go compressed between
nodes.

| system | plan | training loss | held-out loss | beside `ddp` | run on |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Trained:
    """What one system's training ended with; losses in nats a byte."""

    system: str
    plan: str
    trained: float
    held_out: float


def text() -> Tensor:
    """[bytes] of the repository's pages, in the order of their names."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()


def batches(given: Tensor, steps: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Rows from places drawn anew for each step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        places = torch.randint(0, len(given) - LENGTH, (ROWS,), generator=generator)
        rows = torch.stack([given[place : place + LENGTH] for place in places.tolist()])
        yield {"input_ids": rows, "labels": rows}


def split(given: Tensor) -> tuple[Tensor, Tensor]:
    """What is trained on, and the last tenth."""
    cut = len(given) * 9 // 10
    return given[:cut], given[cut:]


def of_frequencies(given: Tensor) -> float:
    """Nats a byte of the held-out text, for a model that knows the training text's frequencies of bytes, one added."""
    trained, held_out = split(given)
    counts = torch.bincount(trained, minlength=BYTES).double() + 1
    return float(-(counts / counts.sum()).log()[held_out].mean())


def model(layers: int = LAYERS) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=BYTES, hidden_size=64, intermediate_size=192, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def run(
    rank: int, ranks: int, folder: str, weights: Mapping[str, Tensor], steps: int, last: int
) -> tuple[float, float]:
    """Training and held-out loss after so many steps, each of so many last batches."""
    trained_on, held_out = split(text())
    losses: list[float] = []
    with autoplan.load(folder).program() as program:
        program.load_weights(weights)
        for batch in batches(trained_on, steps, seed=1):
            losses.append(program.step(batch).item())
            program.optimizer.step()
            program.optimizer.zero_grad()
        told = [program.evaluate(batch).item() for batch in batches(held_out, last, seed=2)]
    kept = losses[-last:]
    return sum(kept) / len(kept), sum(told) / len(told)


def trained(name: str, steps: int, pool: RankPool, layers: int = LAYERS, last: int = LAST) -> Trained:
    system = name
    batch = next(batches(text(), 1, seed=0))
    training = TRAINING
    if system in UNCLIPPED:
        training = replace(training, clip_grad_norm=None)
    if system in (*ARRIVING, COMPENSATED):  # an update for each worker's gradients
        training = replace(training, learning_rate=training.learning_rate / 2)
    if system == COMPENSATED:
        training, system = replace(training, delay_compensation=0.04), ARRIVING[0]
    if system == "1bit-lamb":
        training = replace(training, optimizer="lamb")
    if "1bit" in system:  # of 500 steps 20% are its warm-up; it takes no clipping
        training = replace(training, clip_grad_norm=None, compression_start=steps // 5)
    nodes = 2 if system.startswith("hierarchical-") else 1
    cluster = f"{nodes}x{RANKS // nodes} cpu"
    plan = parallelize_alone(model(layers), cluster, batch, training=training, parallelism=system)
    weights = {name: value.clone() for name, value in model(layers).state_dict().items()}
    with tempfile.TemporaryDirectory(prefix="autoplan-convergence-") as folder:
        found = pool.run(run, str(plan.export(Path(folder) / "out")), weights, steps, last)[0]
    return Trained(name, str(plan), *found)


def diverged(found: Trained, bytes: float) -> bool:
    return not (math.isfinite(found.held_out) and found.held_out < bytes)


def document(rows: Sequence[Trained], steps: int, bytes: float, date: str) -> str:
    """rows  the synchronous one first"""
    first = rows[0].held_out
    lines = [
        f"| `{r.system}` | {r.plan} | {r.trained:.3f} | {r.held_out:.3f} | {r.held_out - first:+.3f} | {date} |\n"
        for r in rows
    ]
    head = TITLE.format(
        steps=steps, rate=TRAINING.learning_rate, rows=ROWS, length=LENGTH, last=LAST, bytes=bytes
    )
    return head + "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--system", action="append", choices=KINDS, help="only this one (repeatable)")
    parser.add_argument("--write", type=Path, help="also write the table into this document")
    given = parser.parse_args()
    rows, bytes = [], of_frequencies(text())
    with RankPool(RANKS, timeout_s=LIMIT_S) as pool:
        for system in (SYNCHRONOUS, *(given.system or KINDS)):
            start = time.perf_counter()
            rows.append(trained(system, given.steps, pool))
            print(f"{time.perf_counter() - start:5.0f} s  {rows[-1]}", flush=True)
    page = document(rows, given.steps, bytes, time.strftime("%Y-%m-%d"))
    print(page)
    if given.write is not None:
        given.write.write_text(page)
    return int(any(diverged(row, bytes) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
