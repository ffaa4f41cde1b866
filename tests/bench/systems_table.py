"""docs/systems.md: every named system with its paper, what it pins, what it costs on an example, whether it was equal.

    python -m tests.bench.systems_table --write docs/systems.md
    python -m tests.bench.systems_table --system fp8 --renew docs/systems.md    its rows alone, the others as they are

Each is planned by its name, with what else the search decides, for the example; equality is read from the matrix in
docs/appendix/systems.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.errors import AutoplanError, DoesNotFitError
from autoplan.models.named import resolve_model
from autoplan.plan import Plan
from autoplan.report.words import parallelism_text, seconds_text
from autoplan.search.space.systems import ASYNCHRONOUS, SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
MATRIX = ROOT / "docs/appendix/systems.md"
CLUSTER = "2x8 h100-sxm"
TRAINING = autoplan.Training(precision="bf16-mixed")


@dataclass(frozen=True)
class Example:
    """A model that systems are planned for: as ``autoplan plan`` takes it, and in words."""

    words: str
    model: str
    batch: int | None = None
    seq: int | None = None
    settings: tuple[str, ...] = ()


SMALL = (
    "hidden_size=2048", "intermediate_size=5504", "num_hidden_layers=24", "num_attention_heads=16",
    "num_key_value_heads=16", "vocab_size=32000",
)  # fmt: skip
DENSE = Example("a Llama of 1.3 billion parameters, 256 rows of 4,096 tokens", "hf:llama", 256, 4096, SMALL)
MIXTURE = Example("Mixtral 8x7B, 256 rows of 4,096 tokens", "hf:mixtral-8x7b", 256, 4096)
TABLES = Example("examples/dlrm.py", f"{ROOT}/examples/dlrm.py:make_model")
EXAMPLES = {"table-parallel": TABLES} | {
    name: MIXTURE for name in ("expert-parallel", "expert-all-to-all", "expert-partial-sum")
}
PAPERS: Mapping[str, str] = {
    "auto": "the search itself",
    "dp": "Li et al. 2020, PyTorch Distributed", "ddp": "Li et al. 2020, PyTorch Distributed",
    "zero1": "Rajbhandari et al. 2020, ZeRO", "zero2": "Rajbhandari et al. 2020, ZeRO",
    "zero3": "Rajbhandari et al. 2020, ZeRO", "fsdp": "Zhao et al. 2023, PyTorch FSDP",
    "zero-offload": "Ren et al. 2021, ZeRO-Offload", "zero-infinity": "Rajbhandari et al. 2021, ZeRO-Infinity",
    "tree-all-reduce": "Thakur et al. 2005, whole buckets on a binomial tree",
    "hierarchical-all-reduce": "Thakur et al. 2005, between nodes each rank its share",
    "parameter-server": "Li et al. 2014, Parameter Server", "central-server": "Li et al. 2014, with one server",
    "stale-server": "Ho et al. 2013, its oldest weights in every step",
    "backup-workers": "Chen et al. 2016, backup workers",
    "async-server": "Dean et al. 2012, Downpour SGD", "bounded-server": "Ho et al. 2013, Stale Synchronous Parallel",
    "tensor-parallel": "Shoeybi et al. 2019, Megatron-LM", "megatron": "Shoeybi et al. 2019, Megatron-LM",
    "megatron-sp": "Korthikanti et al. 2022, sequence parallelism",
    "2d": "Xu et al. 2021, Optimus", "2.5d": "Wang et al. 2021, Tesseract", "3d": "Bian et al. 2021, 3D parallelism",
    "ulysses": "Jacobs et al. 2023, DeepSpeed-Ulysses", "context-parallel": "Llama Team 2024, gathered keys and values",
    "ring-attention": "Liu et al. 2023, Ring Attention", "vocab-parallel": "Shoeybi et al. 2019, section 3",
    "expert-parallel": "Lepikhin et al. 2020, GShard", "expert-all-to-all": "Lepikhin et al. 2020, GShard",
    "expert-partial-sum": "experts split, tokens whole: Lepikhin et al. 2020 without the exchange",
    "table-parallel": "Mudigere et al. 2022, DLRM at scale",
    "gpipe": "Huang et al. 2019, GPipe", "1f1b": "Narayanan et al. 2019, PipeDream",
    "interleaved": "Narayanan et al. 2021, Megatron-LM on clusters", "zero-bubble": "Qi et al. 2023, Zero Bubble",
    "3d-hybrid": "Narayanan et al. 2021, Megatron-LM on clusters",
    "local-sgd": "Stich 2018, Local SGD", "diloco": "Douillard et al. 2023, DiLoCo",
    "pipedream": "Narayanan et al. 2019, PipeDream", "pipedream-vertical-sync": "Narayanan et al. 2019, section 3.3",
    "pipedream-2bw": "Narayanan et al. 2021, PipeDream-2BW", "gossip": "Lian et al. 2017, D-PSGD",
    "powersgd": "Vogels et al. 2019, PowerSGD", "int8": "Wang et al. 2023, ZeRO++ (quantised gradients)",
    "fp8": "Peng et al. 2023, FP8-LM",
    "topk": "Stich et al. 2018, sparsified SGD with memory", "1bit-adam": "Tang et al. 2021, 1-bit Adam",
    "1bit-lamb": "Li et al. 2021, 1-bit LAMB",
    "hierarchical-powersgd": "Vogels et al. 2019, between nodes alone",
    "hierarchical-int8": "Wang et al. 2023, between nodes alone",
    "hierarchical-fp8": "Peng et al. 2023, between nodes alone",
    "hierarchical-topk": "Stich et al. 2018, between nodes alone",
    "hierarchical-1bit-adam": "Tang et al. 2021, between nodes alone",
}  # fmt: skip


def bases(names: Sequence[str]) -> Iterator[tuple[str, Plan]]:
    """(name, a plan of its example by ddp or whatever fits, to be asked again) of each system."""
    made: dict[Example, Plan] = {}
    for name in names:
        example = EXAMPLES.get(name, DENSE)
        if example not in made:
            request = resolve_model(example.model, list(example.settings), example.batch, example.seq)
            made[example] = autoplan.parallelize(
                request.model, CLUSTER, request.example_inputs, loss_fn=request.loss_fn, training=TRAINING,
                effort="fast",
            )  # fmt: skip
        yield name, made[example]


def row(name: str, base: Plan, equality: Mapping[str, str]) -> list[str]:
    pinned = SYSTEMS[name](ClusterSpec.of(CLUSTER))
    pins = parallelism_text(pinned) if pinned.pinned() else "nothing"
    try:
        training = replace(TRAINING, optimizer="lamb") if name == "1bit-lamb" else None
        plan = base.what_if(parallelism=name, constraints=(), training=training, effort="fast")
        most = max(memory.total for memory in plan.predicted.peak_bytes)
        chosen = f"{most / 1e9:.1f} GB" if most >= 1e8 else f"{most / 1e6:.1f} MB"
        cost = seconds_text(plan.predicted.step_time_s)
    except DoesNotFitError:
        cost, chosen = "doesn't fit", ""
    except AutoplanError as error:
        cost, chosen = f"refused: {error.cause}", ""
    stale = "another rule: " if name in ASYNCHRONOUS else ""
    return [f"`{name}`", PAPERS[name], f"`{pins}`", cost, chosen, f"{stale}{equality.get(name, 'not run')}"]


def equalities(text: str) -> dict[str, str]:
    """What the matrix of systems says of each: "equal", "equal to its rule", or the worst."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1].isdigit():
            told = sorted({cell for cell in cells[2:] if cell})
            found[cells[0]] = told[0] if len(told) == 1 else "; ".join(told)
    return found


def document(rows: Sequence[Sequence[str]]) -> str:
    heads = ["system", "paper", "pins", "a step", "memory", "beside one device"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows)]
    others = "; ".join(
        f"{', '.join(f'`{name}`' for name in EXAMPLES if EXAMPLES[name] is example)} for {example.words}"
        for example in (MIXTURE, TABLES)
    )
    told = f"""# Systems

Every named system: `autoplan.parallelize(..., parallelism="zero3")`, or `--parallelism zero3`. What it leaves open is
searched. The step and the fullest device's memory are predicted for {DENSE.words}, on {CLUSTER}, bf16-mixed;
{others}.
So a system that is made for something else may look dear here. [The matrix](appendix/systems.md) has the measured
differences from one device, or from one process that follows an asynchronous rule.

`python -m tests.bench.systems_table --write docs/systems.md` prints this page.
"""
    return told + "\n" + "\n".join(lines) + "\n"


def printed(page: str) -> list[list[str]]:
    """The rows of a page as it was printed."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.systems_table", description=__doc__)
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="only this one (repeatable)")
    parser.add_argument("--write", type=Path, help="also write the page there")
    parser.add_argument("--renew", type=Path, help="write these rows into that page, whose others stay")
    given = parser.parse_args(arguments)
    equality, rows = equalities(MATRIX.read_text()), []
    for name, base in bases(given.system or list(SYSTEMS)):
        rows.append(row(name, base, equality))
        print(*rows[-1], sep=" | ", flush=True)
    if given.write:
        given.write.write_text(document(rows))
    if given.renew:
        known = {cells[0]: cells for cells in (*printed(given.renew.read_text()), *rows)}
        given.renew.write_text(document([known[f"`{name}`"] for name in SYSTEMS if f"`{name}`" in known]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
