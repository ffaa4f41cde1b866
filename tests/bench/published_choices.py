"""Models as others published how they trained them, each planned twice: as published, and freely.

Both are priced by the same prices; what was measured stands beside them. ``tests.bench.plans_document`` prints the
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch

from autoplan.cluster import ClusterSpec
from autoplan.compile import traced_model
from autoplan.ir.choice import Chosen, PricedCollective
from autoplan.models.inputs import resolve_inputs
from autoplan.models.named import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.report.waits import received_s
from autoplan.report.words import choice_text, parallelism_text
from autoplan.search.chosen import choose
from autoplan.search.driver import best_plan, fastest
from autoplan.search.explain.does_not_fit import leanest, needs
from autoplan.search.state import SearchState, begin, candidates
from autoplan.trace.initialise import given
from tests.bench.closed_form.tables.sc21 import step_flops

VOCABULARY = 51200
LOPSIDED = 1.25  # times faster with a further field open: what is pinned fits only in stages far from even
SC21 = "Narayanan et al., SC21"
LLAMA_3 = "Llama Team 2024 (arXiv:2407.21783)"


@dataclass(frozen=True)
class Case:
    """One published choice.

    settings   of the model's configuration
    tflops     published TFLOP/s of a device
    counts     the FLOPs of a step that these count; None: those of the model's products and attention, as we count them
    published  the fields that the source gives; what it leaves open is searched
    opens      fields of these that are left to the search, in this order, where the program that we emit doesn't fit
    """

    name: str
    model: str
    cluster: str
    batch: int
    seq: int
    tflops: float
    source: str
    published: Parallelism
    settings: tuple[str, ...] = ()
    counts: float | None = None
    opens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Priced:
    """What a plan is predicted to cost, and what a device waits for.

    plan           its headline
    memory_bytes   of the fullest stage's device
    bubble_s       of the step, in the pipeline's bubble
    tensor_s, data_s   for collectives on these axes that no compute hides
    messages_s     for activations and their gradients from stage to stage, on the rank that receives most
    again, blocks  blocks that run again, in full or in part, of so many
    """

    plan: str
    step_s: float
    mfu: float
    memory_bytes: int
    bubble_s: float
    tensor_s: float
    data_s: float
    messages_s: float
    again: int
    blocks: int
    tp: int
    rows: int

    @property
    def computes_s(self) -> float:
        """The rest: operators, recomputation and the optimizer included."""
        return self.step_s - self.bubble_s - self.tensor_s - self.data_s - self.messages_s


@dataclass(frozen=True)
class Found:
    """Both plans of a case.

    notes  why theirs isn't priced as published, where it isn't
    peak   FLOP/s of a device in bfloat16
    """

    ours: Priced
    theirs: Priced | None
    notes: tuple[str, ...]
    devices: int
    peak: float
    wall_bytes: int

    def to_dict(self) -> dict:
        return asdict(self)


def found_of(data: dict) -> Found:
    """``Found.to_dict`` undone."""
    theirs = None if data["theirs"] is None else Priced(**data["theirs"])
    return Found(**data | {"ours": Priced(**data["ours"]), "theirs": theirs, "notes": tuple(data["notes"])})


def gpt(layers: int, hidden: int, heads: int) -> tuple[str, ...]:
    return (f"n_layer={layers}", f"n_embd={hidden}", f"n_head={heads}")


def megatron(dp: int | None = None, pp: int | None = None, **chunks: object) -> Parallelism:
    """SC21: full recomputation, no sharded states, no sequence parallelism, microbatches of one row."""
    pins = Parallelism(dp, 8, pp, zero=0, micro_batch=1, recompute="full", sequence_parallel=False)
    return replace(pins, **chunks)  # type: ignore[arg-type]


def meta(dp: int) -> Parallelism:
    """Llama 3, section 3.3.2: sharded states and gradients, parameters kept after the forward, an interleaved
    schedule, nothing recomputed."""
    return Parallelism(dp, tp=8, pp=16, zero=2, pipeline_schedule="interleaved", recompute="none")


def counted(batch: int, layers: int, hidden: int) -> float:
    return step_flops(batch, 2048, layers, hidden, VOCABULARY)


CASES = (
    Case("GPT-3 175B on 1,024", "hf:gpt3-175b", "128x8 a100-sxm-80gb", 1536, 2048, 140,
         f"{SC21}, section 5.1: cluster, batch and throughput; the split isn't given, tp=8 is its tables'", megatron(),
         gpt(96, 12288, 96), counted(1536, 96, 12288), ("sequence_parallel",)),
    Case("GPT-3 175B on 1,536", "hf:gpt3-175b", "192x8 a100-sxm-80gb", 1536, 2048, 141,
         f"{SC21}, table 2, PTD-P, 96 model-parallel ranks; the schedule isn't given", megatron(pp=12, dp=16),
         gpt(96, 12288, 96), counted(1536, 96, 12288), ("sequence_parallel",)),
    Case("GPT 530B on 2,520", "hf:gpt3-175b", "315x8 a100-sxm-80gb", 2520, 2048, 163,
         f"{SC21}, table 1, and its script", megatron(pp=35, dp=9, pipeline_schedule="interleaved", virtual_stages=3),
         gpt(105, 20480, 128), counted(2520, 105, 20480), ("sequence_parallel", "virtual_stages", "pipeline_schedule")),
    Case("GPT 1T on 3,072", "hf:gpt3-175b", "384x8 a100-sxm-80gb", 3072, 2048, 163,
         f"{SC21}, table 1, and its script", megatron(pp=64, dp=6, pipeline_schedule="1f1b"),
         gpt(128, 25600, 160), counted(3072, 128, 25600), ("sequence_parallel",)),
    Case("Llama-3-405B on 8,192", "hf:llama-3.1-405b", "1024x8 h100-sxm", 2048, 8192, 430,
         f"{LLAMA_3}, table 4 and section 3.3.2; rows of a microbatch and stages on a rank aren't given", meta(dp=64),
         opens=("recompute", "pipeline_schedule", "zero")),
    Case("Llama-3-405B on 16,384", "hf:llama-3.1-405b", "2048x8 h100-sxm", 2048, 8192, 400,
         f"{LLAMA_3}, table 4 and section 3.3.2; rows of a microbatch and stages on a rank aren't given", meta(dp=128),
         opens=("recompute", "pipeline_schedule", "zero")),
)  # fmt: skip


def plan_both(case: Case) -> Found:
    """Ours over everything, theirs over what its source leaves open; the model is traced once."""
    torch.set_num_threads(1)
    cluster = ClusterSpec.of(case.cluster)
    training = Training(precision="bf16-mixed", compile=cluster.profile()[0].compiles)
    assert isinstance(training, Training)
    request = resolve_model(case.model, case.settings, batch=case.batch, seq=case.seq)
    module = given(request.model).module
    inputs = resolve_inputs(module, request.example_inputs, cluster.devices)
    free = Parallelism()
    work = begin(traced_model(module, inputs, request.loss_fn, training), cluster, training, free)
    best = best_plan(work, free)
    assert best is not None, f"{case.name}: nothing fits"
    ours = choose(best, work)
    theirs, notes = as_published(case, work)
    told = None if theirs is None else priced(theirs, work)
    peak = cluster.profile()[0].peak_flops_per_s["bfloat16"]
    return Found(priced(ours, work), told, notes, cluster.devices, peak, cluster.usable_bytes)


def as_published(case: Case, work: SearchState) -> tuple[Chosen | None, tuple[str, ...]]:
    """The plan under the published fields, ``case.opens`` left open one after the other until it fits, with stages
    about as even as theirs; and why."""
    pins, notes, found = case.published, [], None
    for opened in (None, *case.opens):
        if opened is not None:
            pins = replace(pins, **{opened: None})
        own = begin(work.prepared.model, work.cluster, work.training, pins)
        limits = (work.cluster.aimed_bytes, work.cluster.usable_bytes)  # as ``driver.best_plan``, theirs alone
        best = next(filter(None, (fastest(own, candidates(own.limits, pins), limit) for limit in limits)), None)
        if found is not None and (best is None or best.step_s * LOPSIDED > found[0].step_s):
            break
        notes += [f"Priced with {opened} left to the search."] if opened is not None else []
        if best is None:
            notes.append(f"As {parallelism_text(pins)} it doesn't fit: {needs(own, leanest(own, pins))}.")
            continue
        found, told = (best, own), tuple(notes)
        notes.append(f"As {parallelism_text(pins)} it fits, but in stages so uneven that it takes {best.step_s:.1f} s.")
    return (None, tuple(notes)) if found is None else (choose(*found), told)


def priced(chosen: Chosen, work: SearchState) -> Priced:
    """What the table tells of a choice."""
    predicted, p = chosen.predicted, chosen.parallelism
    uses = [segment.block for segment in work.prepared.model.segments]
    assert p.tp is not None and p.micro_batch is not None and p.pp is not None
    return Priced(
        plan=choice_text(chosen, work.prepared.model),
        step_s=predicted.step_time_s,
        mfu=predicted.mfu,
        memory_bytes=max(memory.total for memory in predicted.peak_bytes),
        bubble_s=predicted.bubble_fraction * predicted.step_time_s,
        tensor_s=open_s(c for c in predicted.collectives if c.axis not in ("dp", "pp")),
        data_s=open_s(c for c in predicted.collectives if c.axis == "dp"),
        messages_s=max(received_s([c.seconds - c.hidden_s for c in predicted.collectives if c.kind == "send"], p.pp)),
        again=sum(stage.recompute + stage.selective for stage in chosen.stages),
        blocks=sum(uses.count(block) > 1 for block in uses),
        tp=p.tp,
        rows=p.micro_batch,
    )


def open_s(collectives: Iterator[PricedCollective]) -> float:
    return sum(c.seconds - c.hidden_s for c in collectives)
