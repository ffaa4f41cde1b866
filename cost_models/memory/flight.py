"""Microbatches in flight, in closed form: how much of what a stage saves is alive at its peak."""

from __future__ import annotations

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")


def stages_in_flight(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> float:
    """How many times the saved activations of a rank's layers are alive on ``stage`` at its peak, 0 < … ≤ m.

    stage         of the pipeline, from 0; stages the ranks on the pipeline's axis (p)
    microbatches  of one step (m)
    chunks        a rank's layers are in so many chunks (v); one chunk in flight counts 1/v

    gpipe        m (Huang et al. 2019)
    1f1b         min(m, p-s) (Narayanan et al. 2021, section 2.2)
    interleaved  min(mv, 2(p-s-1) + (v-1)p + 1)/v: the first stage's is p(1 + (p-1)/(pv)) (Narayanan et al. 2021,
                 section 2.2; Korthikanti et al. 2022, section 4.2.3); as 1f1b with one chunk
    zero-bubble  min(m, p) on every stage: weight gradients are put off, and what they need is kept (ZB-H1, Qi et al.
                 2023, section 2.2: the peak of 1f1b's first stage)
    zbv          min(m, p) on every stage: 2p chunks of half a rank's layers (Qi et al. 2023, section 5)
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    if not 0 <= stage < stages:
        raise ValueError(f"stage {stage} is none of 0 … {stages - 1}")
    if schedule == "gpipe":
        return microbatches
    if schedule in ("zero-bubble", "zbv"):
        return min(microbatches, stages)
    if schedule == "1f1b" or chunks == 1:
        return min(microbatches, stages - stage)
    return min(microbatches * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1) / chunks


def weight_versions(schedule: str, stage: int, stages: int) -> int:
    """Copies of a stage's weights that are kept: as many as microbatches in flight in PipeDream, whose backward uses
    the weights of its forward (Narayanan et al. 2019, section 3.3), two in PipeDream-2BW (Narayanan et al. 2021b,
    section 3.1), one where the pipeline is flushed."""
    if schedule == "pipedream":
        return stages - stage
    return 2 if schedule == "pipedream-2bw" else 1
