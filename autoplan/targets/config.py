"""What a trainer is told of a plan, and what it can't be told."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.options import Parallelism


@dataclass(frozen=True)
class ExportedConfig:
    """A plan as a trainer's configuration.

    kind         "megatron", "torchtitan", "deepspeed", "accelerate", "nanotron"
    file         the name that it usually has
    text         its content
    parallelism  what the trainer then runs, every field that it decides pinned
    lost         what of the plan it has no words for, and what stands in its place
    planned_s    step time of the plan before
    replanned_s  the same with ``parallelism``; None where that isn't possible, and ``why`` says why
    """

    kind: str
    file: str
    text: str
    parallelism: Parallelism
    lost: tuple[str, ...]
    planned_s: float = 0.0
    replanned_s: float | None = None
    why: str = ""

    @property
    def costs(self) -> float | None:
        """What is lost costs this share of the plan's step time; None where it has no price."""
        return None if self.replanned_s is None or not self.planned_s else self.replanned_s / self.planned_s - 1

    def __str__(self) -> str:
        price = f"not priced: {self.why}" if self.costs is None else f"its step takes {100 * self.costs:+.1f}%"
        lines = [f"{self.kind}: {price}", *(f"  lost: {one}" for one in self.lost)]
        return "\n".join(lines)
