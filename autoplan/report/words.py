"""Quantities, layouts and parallelisms as people write them."""

import math
from collections import Counter
from collections.abc import Sequence

from autoplan.cluster.interval import interval_of
from autoplan.ir.choice import Alternative, Chosen
from autoplan.ir.graph import Model
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.option_values import AUTO, ON_DISK, SHARED, UNBOUNDED, cuts
from autoplan.options import Parallelism
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy
from autoplan.search.space.one_line import COMPRESSION_WORDS, CP_WORDS, SCHEDULE_WORDS, SYSTEM_WORDS

GIB, MIB = 2**30, 2**20


def headline(record: PlanRecord) -> str:
    """``dp=4 tp=8 pp=2, 1F1B, 16 microbatches of 1, ZeRO-1, …``, as ``search.space.one_line`` reads it."""
    return choice_text(record.chosen, record.model)


def choice_text(chosen: Chosen, model: Model) -> str:
    """The headline of a choice that no plan has been made of yet."""
    blocks = sum(n for n in Counter(s.block for s in model.segments).values() if n > 1)
    selective = sum(stage.selective for stage in chosen.stages)
    if chosen.parallelism.offload == "activations":
        how = f"activations of {selective} of {blocks} blocks on the host"
        return ", ".join(filter(None, (*parallelism_parts(chosen.parallelism, chosen.microbatches), how)))
    again = sum(stage.recompute for stage in chosen.stages) + selective
    how = f" ({'all' if selective == again else selective} selectively)" if selective else ""
    recompute = f"recompute {again} of {blocks} blocks{how}" if again else ""
    return ", ".join(part for part in (*parallelism_parts(chosen.parallelism, chosen.microbatches), recompute) if part)


def parallelism_parts(parallelism: Parallelism, microbatches: int | None) -> list[str]:
    """The parts of the headline that the parallelism says; "" for what isn't used."""
    p = parallelism
    sizes = [f"{name}={size}" for name, size in sizes_of(p) if size and size > 1]
    sizes += [f"etp={p.etp}"] if p.etp and (p.ep or 1) > 1 and (p.tp or 1) > 1 else []
    if p.tensor and len(p.tensor) > 1:
        sizes = [f"{size} ({'x'.join(map(str, p.tensor))})" if size.startswith("tp=") else size for size in sizes]
    pipelined = bool(p.pp and p.pp > 1)
    schedule = SCHEDULE_WORDS.get(p.pipeline_schedule or "", p.pipeline_schedule or "") if pipelined else ""
    chunks = f"{p.virtual_stages} stages on each rank" if pipelined and (p.virtual_stages or 1) > 1 else ""
    many = "" if microbatches is None else f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
    rows = f" of {p.micro_batch}" if p.micro_batch else ""
    if microbatches is None and p.micro_batch:
        many, rows = "microbatches", rows
    return [
        " ".join(sizes) or "one device",
        schedule,
        chunks,
        many + rows if many else "",
        f"ZeRO-{p.zero}" if p.zero else "",
        f"{p.dp_replicate} replicas" if (p.dp_replicate or 1) > 1 else "",
        "sequence parallel" if p.sequence_parallel else "",
        "tensor collectives in chunks" if p.tp_overlap == AUTO else "",
        f"tensor collectives in {p.tp_overlap} chunks" if cuts(p.tp_overlap) else "",
        exchange_words(p.ep_overlap),
        f"offload {p.offload}" if p.offload else "",
        SYSTEM_WORDS.get(p.tensor_system, f"{p.tensor_system} tensor parallel") if p.tensor_system else "",
        CP_WORDS[p.cp_attention] if p.cp_attention else "",
        local_words(p) if p.steps_locally else "",
        f"{p.servers} parameter server{'s' * (p.servers > 1)}" if p.servers else "",
        f"weights {p.staleness} update{'s' * (p.staleness > 1)} old" if p.staleness else "",
        f"{p.backups} backup worker{'s' * (p.backups > 1)}" if p.backups else "",
        ahead_words(p.ahead) if p.ahead else "",
        compression_words(p) if p.compression else "",
        f"{p.all_reduce} all-reduce" if p.all_reduce else "",
        f"tables on {p.tables}" if p.tables else "",
        f"{p.table_cache:g} of rows cached" if p.table_cache is not None else "",
        f"{p.table_misses:g} of rows missed" if p.table_misses is not None else "",
    ]


def ahead_words(steps: int | str) -> str:
    """How far workers are from one another, where servers apply gradients as they arrive."""
    if steps == UNBOUNDED:
        return "gradients applied as they arrive"
    return f"gradients applied as they arrive, workers {steps} step{'s' * (steps != 1)} ahead at most"


def exchange_words(how: int | str | None) -> str:
    """What a mixture's tokens travel beside."""
    words = {SHARED: "tokens travel under shared experts", AUTO: "tokens travel under compute"}
    return f"tokens travel in {how} chunks" if cuts(how) else words.get(str(how), "")


def compression_words(p: Parallelism) -> str:
    """How gradients over the data axis are compressed."""
    words = COMPRESSION_WORDS[str(p.compression)]
    words += f" of rank {p.compression_rank}" if p.compression_rank else ""
    words += f" of {p.compression_rate:g}" if p.compression_rate else ""
    return words + (f", between groups of {p.compression_within}" if (p.compression_within or 1) > 1 else "")


def local_words(p: Parallelism) -> str:
    """What replicas that step by themselves do from time to time."""
    if p.gossip:
        often = f"{p.local_steps} steps" if p.local_steps else "step"
        return f"neighbours on a{'n' * (p.gossip[0] == 'e')} {p.gossip} graph averaged every {often}"
    if p.outer_optimizer:
        return f"outer steps ({p.outer_optimizer}) every {p.local_steps} steps"
    return f"replicas averaged every {p.local_steps} steps"


def sizes_of(p: Parallelism) -> tuple[tuple[str, int | None], ...]:
    """The axes' names and sizes in the order of a headline."""
    return (("dp", p.dp), ("cp", p.cp), ("tp", p.tp), ("pp", p.pp), ("ep", p.ep))


def parallelism_text(parallelism: Parallelism) -> str:
    """A parallelism in one line, for the table of alternatives."""
    parts = parallelism_parts(parallelism, None)
    recompute = "" if parallelism.recompute in (None, "none") else f"recompute {parallelism.recompute}"
    return ", ".join(part for part in (*parts, recompute) if part)


def seconds_text(seconds: float) -> str:
    """ "12.3 s", "45.6 ms", "7.89 µs"; "0" for nothing."""
    if seconds == 0:
        return "0"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 0.9995 or unit == "µs":
            return f"{three_digits(seconds * factor)} {unit}"
    raise AssertionError("the last unit takes any number")


def three_digits(number: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(number)
    return f"{number:,.0f}" if size >= 99.95 else f"{number:.1f}" if size >= 9.995 else f"{number:.2f}"


def unit_for(most: float) -> tuple[int, str]:
    """The unit of a table whose largest size has so many bytes, and its name."""
    return (GIB, "GiB") if most >= GIB // 10 else (MIB, "MiB")


def size_in(unit: int, size: float) -> str:
    """Bytes in a unit that the column's header names."""
    return three_digits(size / unit) if size else "0"


LEGEND = (
    "Shard(d): a slice along dim d. Partial: a summand. Replicate and Invariant: the same values on every rank of the\n"
    "axis. The gradient of Invariant is whole on each rank; that of Replicate, if it has one, is a summand (Partial)."
)
"""What placements mean, for those who meet them in a table."""


def wide_axes(mesh: Mesh) -> tuple[str, ...]:
    """Device axes along which there is more than one rank."""
    return tuple(axis.name for axis in mesh.device_axes if axis.size > 1 and axis.name != "pp")


def way_text(way: AxisStrategy) -> str:
    """``Replicate, Shard(0) -> Shard(2)``: how the operands come and the result goes on one axis."""
    body = f", by {way.body}" if way.body else ""
    return f"{', '.join(s.placement for s in way.inputs)} -> {way.output.placement}{body}".strip()


def strategy_text(strategy: Strategy, mesh: Mesh) -> str:
    """``tp: Replicate, Shard(0) -> Shard(2)`` for each axis; "" on one device."""
    return "; ".join(f"{axis}: {way_text(strategy.on(axis))}" for axis in wide_axes(mesh))


def short_op(op: str) -> str:
    """ "aten.linear.default" -> "linear"; attention by the letters that it goes by."""
    name = op.split(".")[1] if "." in op else op
    return "sdpa" if name == "scaled_dot_product_attention" else name


def apart_text(record: PlanRecord) -> str:
    """Where that lies which isn't in the devices' memory."""
    chosen = record.chosen.parallelism
    return "on disk" if ON_DISK in (chosen.offload, chosen.tables) else "on the host"


def is_chosen(record: PlanRecord, alternative: Alternative) -> bool:
    """Whether an alternative, a named system say, is the plan itself."""
    same = alternative.parallelism == record.chosen.parallelism and not alternative.why_not
    return same and math.isclose(alternative.step_time_s, record.chosen.predicted.step_time_s, rel_tol=1e-9)


def elements_of(record: PlanRecord) -> str:
    """What a rate counts: "tokens", or "rows" where the first batch input holds no ids."""
    return "tokens" if record.model.batch and not record.model.batch[0].type.floating else "rows"


def fullest_stage(chosen: Chosen, memory_limits: Sequence[int] = ()) -> int:
    """The stage whose device holds most; of several kinds, the one that has least left of its own memory limit."""
    totals = [memory.total for memory in chosen.predicted.peak_bytes]
    left = [limit - total for limit, total in zip(memory_limits or [0] * len(totals), totals, strict=True)]
    return left.index(min(left))


def step_text(record: PlanRecord) -> str:
    """ "12.3 s (11.6 s to 13.1 s), predicted", and whether steps on these devices were ever compared."""
    step_s = record.chosen.predicted.step_time_s
    found = interval_of(record.cluster, step_s)
    told = "predicted" if found.is_validated else "predicted, not validated on this device"
    return f"{seconds_text(step_s)} ({interval_text(record)}), {told}"


def interval_text(record: PlanRecord) -> str:
    """ "11.6 s to 13.1 s"."""
    found = interval_of(record.cluster, record.chosen.predicted.step_time_s)
    return f"{seconds_text(found.low_s)} to {seconds_text(found.high_s)}"


def is_equal(record: PlanRecord, alternative: Alternative) -> bool:
    """Whether each of the plan and an alternative lies within the other's interval: which is quicker isn't known."""
    own_s, other_s = record.chosen.predicted.step_time_s, alternative.step_time_s
    own, other = interval_of(record.cluster, own_s), interval_of(record.cluster, other_s)
    return own.holds(other_s) and other.holds(own_s)
