"""What a program's lines don't show: collectives inside operators, those of once a step, the schedule."""

from collections.abc import Iterable

from autoplan.emit.source import size_text
from autoplan.ir.buckets import server_ranks, shard_sizes
from autoplan.ir.choice import Chosen, PricedCollective
from autoplan.ir.typed_program import Compute, Lowered, parameter_sizes
from autoplan.option_values import CONTINUOUS, UNBOUNDED
from cost_models.pipeline.order import actions

BACKWARD = " (backward)"
FIRST = 10  # actions of a rank that are written down


def inside_comments(chosen: Chosen, lowered: Lowered) -> dict[tuple[int, str], str]:
    """(block, value) -> the collectives inside the operator that gives it: ``all-reduce over tp 32 KiB``."""
    found: dict[str, list[PricedCollective]] = {}
    for one in chosen.predicted.collectives:
        found.setdefault(one.where, []).append(one)
    comments = {}
    for number, block in enumerate(lowered.blocks):
        for statement in block.body:
            if isinstance(statement, Compute) and statement.body:
                where = f"{block.name} {statement.value.name}"
                inside = {"forward": found.get(where, ()), "backward": found.get(where + BACKWARD, ())}
                text = "; ".join(f"{side}: {crossing(own)}" for side, own in inside.items() if own)
                comments[number, statement.value.name] = text
    return comments


def crossing(found: Iterable[PricedCollective]) -> str:
    """``all-reduce over tp 32 KiB, all-gather over tp 1 MiB``."""
    return ", ".join(dict.fromkeys(f"{c.kind} over {c.axis} {size_text(c.bytes)}" for c in found))


def step_notes(chosen: Chosen, lowered: Lowered) -> list[str]:
    """Lines for the program's docstring: what the data axis moves, and who does what in which order."""
    blocks = tuple(f"{block.name} " for block in lowered.blocks)
    beside = [c for c in chosen.predicted.collectives if c.kind != "send" and not c.where.startswith(blocks)]
    lines = [f"  {c.where}: {c.kind} over {c.axis}, {size_text(c.bytes)}{times(c)}" for c in beside]
    said = ["Beside what the lines below show, the runtime moves for a step:", *lines] if lines else []
    return [*said, *server_notes(chosen, lowered), *schedule_notes(chosen)]


def server_notes(chosen: Chosen, lowered: Lowered) -> list[str]:
    """Which ranks are parameter servers, and how old the weights are that gradients are of."""
    p = chosen.parallelism
    if not p.servers:
        return []
    ranks = server_ranks(p.servers, chosen.mesh.size("dp"))
    sizes = shard_sizes(parameter_sizes(lowered.parameters), p.servers)
    held = ", ".join(f"{rank} ({size_text(size)})" for rank, size in zip(ranks, sizes, strict=True))
    lines = [f"Parameter servers are ranks {held} of dp: each alone updates its shard of the parameters."]
    if p.staleness:
        lines.append(f"Gradients are of the weights {p.staleness} update{'s' * (p.staleness > 1)} before the newest.")
    if p.backups:
        first = chosen.mesh.size("dp") - p.backups
        lines.append(f"A step is by the mean of the gradients of the first {first} workers that have them.")
    if p.ahead:
        bound = "any number of steps" if p.ahead == UNBOUNDED else f"at most {p.ahead} step{'s' * (p.ahead != 1)}"
        lines.append("Each server makes an update by each worker's gradients, as they arrive.")
        lines.append(f"A worker is {bound} ahead of the slowest.")
    return lines


def times(collective: PricedCollective) -> str:
    return f", {collective.count:,} times" if collective.count > 1 else ""


def schedule_notes(chosen: Chosen) -> list[str]:
    """The first actions of the first and the last pipeline rank."""
    p, m = chosen.parallelism, chosen.microbatches
    ranks = p.pp or 1
    if ranks == 1:
        return [f"A step runs {m} microbatches one after the other: forward, backward."] if m > 1 else []
    schedule = p.pipeline_schedule or "1f1b"
    virtual = None if schedule in ("gpipe", "1f1b", *CONTINUOUS) else p.virtual_stages
    several = virtual is not None and virtual > 1
    said = "1F3 is stage 1's forward of microbatch 3" if several else "F3 is the forward of microbatch 3"
    halves = "zero" in schedule or schedule == "zbv"
    split = "I3 its inputs' gradients, W3 its weights'" if halves else "B3 its backward"
    on = "; the next follow on, without a flush" if p.continuous else ""
    lines = [f"A step runs {m} microbatches by {schedule}{on}; {said}, {split}:"]
    for rank in (0, ranks - 1):
        order = actions(schedule, rank, ranks, m, virtual)
        shown = " ".join(str(a) if several else f"{a.kind}{a.microbatch}" for a in order[:FIRST])
        lines.append(f"  rank {rank}: {shown}{' …' if len(order) > FIRST else ''}")
    return lines
