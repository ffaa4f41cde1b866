"""How a program is parallel, drawn from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from autoplan.options import Parallelism


@dataclass(frozen=True)
class Setting:
    """How a program is to be parallel: sizes of the axes, and what follows from them.

    free    rows may be mixed with other dims, so that only tensor axes split anything
    pins    the share of operators that are pinned to layouts drawn at random
    """

    dp: int
    tensor: tuple[int, ...]
    pp: int
    microbatches: int
    micro_rows: int
    zero: int
    recompute: str
    free: bool
    pins: float

    @property
    def ranks(self) -> int:
        return self.dp * math.prod(self.tensor) * self.pp

    @property
    def rows(self) -> int:
        return self.dp * self.microbatches * self.micro_rows

    @property
    def without_stages(self) -> Setting:
        """The same rows on the same ranks."""
        return replace(self, pp=1, dp=self.dp * self.pp, microbatches=self.microbatches // self.pp)

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(
            dp=self.dp,
            tp=math.prod(self.tensor),
            pp=self.pp,
            tensor=self.tensor if len(self.tensor) > 1 else None,
            micro_batch=self.micro_rows,
            zero=self.zero,
            recompute=self.recompute,
        )

    def __str__(self) -> str:
        tensor = "x".join(map(str, self.tensor))
        return (
            f"dp={self.dp} tp={tensor} pp={self.pp} zero={self.zero} recompute={self.recompute} "
            f"{self.microbatches} microbatches of {self.micro_rows} rows, {self.pins:.0%} pinned{', free' * self.free}"
        )


def draw_pins(chance: random.Random, tensor: tuple[int, ...]) -> float:
    """Some or none on one axis, most on several, where an open search takes long."""
    return chance.choice((0.0, 0.2, 0.5)) if len(tensor) == 1 else 0.8


MESHES = (  # data axis, tensor axes, pipeline
    (1, (2,), 1), (2, (1,), 1), (1, (3,), 1), (1, (4,), 1), (2, (2,), 1), (1, (2, 2), 1), (3, (2,), 1), (1, (8,), 1),
    (2, (4,), 1), (4, (2,), 1), (2, (2, 2), 1), (1, (2, 4), 1), (1, (2, 2, 2), 1), (1, (2,), 2), (2, (2,), 2),
    (2, (1,), 2),
)  # fmt: skip


def draw_setting(seed: int) -> Setting:
    """One of three axes or fewer, of up to eight ranks."""
    chance = random.Random(f"setting {seed}")
    free = chance.random() < 0.2
    dp, tensor, pp = chance.choice([mesh for mesh in MESHES if not free or mesh[0] == mesh[2] == 1])
    microbatches = 1 if free else max(pp, chance.choice((1, 1, 2)))
    return Setting(
        dp,
        tensor,
        pp,
        microbatches,
        chance.choice((1, 2, 3, 4)) if not free else chance.choice((4, 6, 8)),
        chance.choice((0, 0, 1, 2, 3)) if dp > 1 and pp == 1 else 0,
        chance.choice(("none", "none", "none", "full")),
        free,
        draw_pins(chance, tensor),
    )
