"""A line of the file of recipes, and the pins that it says."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.ir.folding import fold
from autoplan.options import Parallelism
from tests.bench.recipes.adapters import ALPHA, RANK
from tests.bench.recipes.clusters import NODES, cluster_text
from tests.bench.recipes.shapes import ATTENTION, EVERY, FUSED, SHAPES, UNKNOWN, Shape, settings

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data" / "recipes.csv"
NEAR_BF16 = ("bf16", "")
TRAINS_ADAPTERS = ("AutoModel", "32")
"""(source, batch) of rows from its table of fine-tuning, whose recipes are ``custom_qwen2_5_32b_peft_benchmark.yaml``
and their like: low-rank adapters of every projection, all else frozen."""
TUNES_ADAPTERS = ("Megatron-Bridge", "LLAMA3_70B", "8")
"""(source, model, devices) of rows from "LoRA Performance" in docs/performance-summary-archive.md of
NVIDIA-NeMo/Megatron-Bridge, whose recipes (``llama3_70b_peft_8gpu_*_config``) adapt ``linear_qkv`` alone."""
FEWER_LAYERS = {("dgxc-benchmarking", "Llama3.1-405B", devices): layers
                for devices, layers in (("32", 7), ("96", 21), ("192", 42))}  # fmt: skip
"""Layers by (source, model, devices), of "proxy configs" in llama3.1/README_405b.md of NVIDIA/dgxc-benchmarking."""
ADAPTED = {
    ATTENTION: "The four projections of attention, whose first three the recipe fuses, have",
    EVERY: "All seven projections of a layer have",
    FUSED: "The projections to queries, keys and values, which the recipe fuses, have",
}


@dataclass(frozen=True)
class Job:
    """What is planned freely once for all the rows that agree on it."""

    model: str
    settings: tuple[str, ...]
    cluster: str
    batch: int
    seq: int
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A row whose model, devices and pins are known.

    notes  what of the row isn't planned as it was run, a sentence each
    """

    name: str
    text: str
    job: Job
    pins: Parallelism
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A row that says too little, or more than can be pinned; and why."""

    name: str
    text: str
    reason: str


def read(path: Path) -> list[Recipe | Refused]:
    with path.open(newline="") as file:
        return [understood(row) for row in csv.DictReader(file)]


def understood(row: dict[str, str]) -> Recipe | Refused:
    """A row's job and pins, or why there are none."""
    shape = SHAPES.get(row["model"])
    if shape is None:
        reason = UNKNOWN.get(row["model"], "its shape isn't published where it could be read")
        return Refused(row["id"], described(row), reason)
    shape, what = as_run(row, shape)
    text = described(row, what)
    if row["gpu"] not in NODES:
        return Refused(row["id"], text, "no profile of its devices")
    seq = int(row["seq"]) if row["seq"] else shape.seq
    if seq is None:
        return Refused(row["id"], text, "its sequence isn't given")
    return pinned(row, text, shape, seq)


def as_run(row: dict[str, str], shape: Shape) -> tuple[Shape, str]:
    """A row's shape with what its source says of it, but no column does; and that in a few words."""
    source = row["source"].partition("@")[0]
    if (source, row["global_batch"]) == TRAINS_ADAPTERS:
        return replace(shape, adapters=EVERY), ""
    if (source, row["model"], row["n_gpus"]) == TUNES_ADAPTERS:
        return replace(shape, adapters=FUSED), "LoRA"
    layers = FEWER_LAYERS.get((source, row["model"], row["n_gpus"]))
    if layers is None:
        return shape, ""
    return replace(shape, settings=(*shape.settings, *settings(num_hidden_layers=layers))), f"{layers} layers"


def pinned(row: dict[str, str], text: str, shape: Shape, seq: int) -> Recipe | Refused:
    devices, tp, cp, pp, ep = (int(row[name] or 1) for name in ("n_gpus", "tp", "cp", "pp", "ep"))
    rows, rest = divmod(devices, tp * cp * pp)
    if rest:
        return Refused(row["id"], text, f"{devices} devices aren't a multiple of tp x cp x pp")
    etp = int(row["etp"]) if row["etp"] and ep > 1 else None
    if not any(fold(rows, cp, (tp,), ep, whole) for whole in ((tp, 1) if etp is None else (etp,))):
        return Refused(row["id"], text, f"its experts' axis of {ep} is no union of parts of dp={rows}, cp and tp")
    notes, micro = [], int(row["micro_batch"]) if row["micro_batch"] else None
    batch = int(row["global_batch"]) if row["global_batch"] else rows * (micro or 1)
    if not row["global_batch"]:
        notes.append("The batch isn't given: that of a rank times dp.")
        micro = None if pp > 1 else micro
    stages = int(row["virtual_stages"] or 1)
    zero, recompute = sharding(row), row["recompute"] if row["recompute"] in ("full", "none") else None
    if row["precision"].lower() not in NEAR_BF16 and "bf16" not in row["precision"]:
        notes.append(f"Planned in bf16 where the row ran {row['precision']}.")
    if shape.adapters:
        notes.append(f"{ADAPTED[shape.adapters]} adapters of rank {RANK} and alpha {ALPHA} without dropout.")
    pins = Parallelism(
        dp=rows, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, zero=zero, recompute=recompute, micro_batch=micro,
        pipeline_schedule="interleaved" if pp > 1 and stages > 1 else None,
        virtual_stages=stages if pp > 1 and stages > 1 else None,
    )  # fmt: skip
    cluster = cluster_text(row["gpu"], devices)
    assert cluster is not None
    long = () if seq <= 8192 or not shape.model.startswith("hf:llama") else (f"max_position_embeddings={seq}",)
    job = Job(shape.model, (*shape.settings, *long), cluster, batch, seq, shape.adapters)
    return Recipe(row["id"], text, job, pins, tuple(notes))


def sharding(row: dict[str, str]) -> int | None:
    """The ZeRO level. FSDP over more than one rank is the third, whatever the optimizer's column says."""
    if row["fsdp"] not in ("", "0", "1"):
        return 3
    return int(row["zero"]) if row["zero"] else None


def described(row: dict[str, str], what: str = "") -> str:
    model = f"{row['model']} ({what})" if what else row["model"]
    axes = " ".join(f"{name}={row[name]}" for name in ("tp", "cp", "pp", "ep") if row[name] not in ("", "1"))
    return f"{model} on {row['n_gpus']} {row['gpu']}, batch {row['global_batch'] or '-'}, {axes or 'dp alone'}"
