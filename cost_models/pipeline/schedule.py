"""The schedules: who holds which stage, which microbatch counts they run, and what they hold.

d ranks (a rank is a device, or a group that works as one), m microbatches, v stages on each rank. The v·d stages are
numbered along the model; where v > 1 a rank holds several pieces of it, its virtual stages.

gpipe        every forward, then every backward (Huang et al. 2019)
1f1b         a forward and a backward in turn (PipeDream-flush; Narayanan et al. 2021, section 2.2)
interleaved  the same, v stages a rank, stage s on rank s mod d (Narayanan et al. 2021, section 2.2; Megatron-LM)
zero-bubble  the backward split in two, the weights' gradients later, where ranks would wait: ZB-H1 for v = 1 (Qi et al.
             2023, section 2.2), for v > 1 interleaved as in torch.distributed.pipelining (InterleavedZeroBubble)
zbv          the same split, two stages a rank, placed like a V: rank r holds stages r and 2d-1-r (Qi et al. 2024)
pipedream    1f1b that never flushes: weights change after each step's m microbatches, and one that goes back meets the
             weights which it met on its way forward, stashed until then (Narayanan et al. 2019; there m = 1)
pipedream-vertical-sync  the same, but every rank changes its weights as late as the first one (section 3.3)
pipedream-2bw  PipeDream-2BW: never flushes either; weights change once each m ≥ d microbatches, so that two versions of
             them are enough (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1)
"""

from __future__ import annotations

ASYNCHRONOUS = ("pipedream", "pipedream-vertical-sync", "pipedream-2bw")
"""No flush between steps: gradients are of older weights (``staleness``)."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", *ASYNCHRONOUS)
SPLIT = ("zero-bubble", "zbv")
"""The backward is split: the inputs' gradients, then the weights'."""
ROUNDS = ("interleaved", "zero-bubble")
"""Microbatches go through a rank's stages in rounds of equal size."""


def chunks(schedule: str, virtual_stages: int | None = None) -> int:
    """v, the stages on each rank: two in zbv, free where ranks take turns (default 1), else one."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    fixed = None if schedule in ROUNDS else 2 if schedule == "zbv" else 1
    count = (fixed or 1) if virtual_stages is None else virtual_stages
    if count < 1 or (fixed is not None and count != fixed):
        wanted = "at least one" if fixed is None else str(fixed)
        raise ValueError(f"virtual_stages={count}: {schedule} has {wanted} on each rank")
    return count


def rank_of(schedule: str, stage: int, ranks: int) -> int:
    """The rank that holds a stage."""
    return min(stage, 2 * ranks - 1 - stage) if schedule == "zbv" else stage % ranks


def round_size(schedule: str, ranks: int, microbatches: int) -> int:
    """Microbatches that go through one of a rank's stages before it turns to the next: d where d divides m.

    torch.distributed.pipelining makes ⌊m/d⌋ rounds, Megatron-LM asks that d divides m. A ValueError where rounds would
    be of unequal size.
    """
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        near = rounds * (microbatches // rounds)
        raise ValueError(
            f"{schedule} goes through its stages in {rounds} equal rounds, which {microbatches} microbatches on "
            f"{ranks} ranks don't fill: take {near} or {near + rounds} microbatches"
        )
    return microbatches // rounds


def check(schedule: str, ranks: int, microbatches: int, virtual_stages: int | None = None) -> int:
    """v, or a ValueError where the schedule can't run."""
    count = chunks(schedule, virtual_stages)
    if ranks < 1 or microbatches < 1:
        raise ValueError(f"{ranks} ranks and {microbatches} microbatches are no pipeline: it has one of each at least")
    if schedule in ROUNDS:
        round_size(schedule, ranks, microbatches)
    if schedule == "pipedream-2bw" and microbatches < ranks:
        raise ValueError(
            f"pipedream-2bw on {ranks} ranks can't make do with two versions of the weights where a step has "
            f"{microbatches} microbatches: give it {ranks}, or use pipedream"
        )
    return count


def warm_up(schedule: str, rank: int, ranks: int, microbatches: int, virtual_stages: int) -> int:
    """Forwards before a rank's first backward, less the one right before it.

    d-1-r: so many ranks stand between this one and the turning point. Interleaved goes through v-1 rounds first and
    counts the way to the end twice, for there a forward and a backward are under way at once (Megatron-LM).
    """
    if schedule == "gpipe":
        return microbatches
    behind = ranks - 1 - rank
    if schedule not in ROUNDS:
        return min(microbatches, behind)
    before = (virtual_stages - 1) * round_size(schedule, ranks, microbatches)
    return min(virtual_stages * microbatches, before + (2 if schedule == "interleaved" else 1) * behind)


def behind(schedule: str, rank: int, ranks: int) -> int:
    """Of a schedule without a flush, the microbatches whose backward a rank has yet to run at the end of a step.

    A rank of pipedream's ends its step with a backward, so d-1-r; of 2BW's with a forward, so one more: with that no
    gradient of a step is complete within it on any rank, and all are within the next, if m ≥ d.
    """
    return ranks - 1 - rank + (schedule == "pipedream-2bw")


def weight_versions(schedule: str, ranks: int, microbatches: int = 1) -> tuple[int, ...]:
    """For each rank, the versions of its weights that it holds: of the steps whose microbatches it has in flight, and
    the newest. d-r in pipedream where a step is one microbatch (Narayanan et al. 2019, section 3.3), two in 2BW."""
    if schedule not in ASYNCHRONOUS:
        return (1,) * ranks
    count = ranks if schedule == "pipedream-2bw" else microbatches
    return tuple(1 + -(-behind(schedule, rank, ranks) // count) for rank in range(ranks))


def staleness(schedule: str, ranks: int, microbatches: int = 1) -> tuple[int, ...]:
    """For each rank, by how many updates the weights of which a gradient is taken are older than those it changes:
    ⌈(d-1-r)/m⌉ in pipedream, with vertical sync on all ranks what it is on the first, one in 2BW, else none."""
    own = tuple(versions - 1 for versions in weight_versions(schedule, ranks, microbatches))
    return (own[0],) * ranks if schedule == "pipedream-vertical-sync" else own


def gradients_held(schedule: str, ranks: int, microbatches: int) -> tuple[int, ...]:
    """For each rank, the gradients of its weights that it holds at the end of a step: those that are applied now, those
    that wait for it, and those of a step of which it has run a part of the backwards."""
    if schedule not in ASYNCHRONOUS:
        return (1,) * ranks
    late, own = staleness(schedule, ranks, microbatches), weight_versions(schedule, ranks, microbatches)
    partly = [behind(schedule, rank, ranks) % microbatches > 0 for rank in range(ranks)]
    return tuple(1 + part + wait - (kept - 1) for part, wait, kept in zip(partly, late, own, strict=True))
