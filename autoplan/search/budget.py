"""What a search may spend: the numbers that steer the driver, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SearchBudget:
    """How far a search goes.

    tolerance       share of a step that no further work is worth: a candidate is evaluated only where its bound leaves
                    more than this, and other operators are sought only where the plan at hand does. Prices are off by
                    more than either value.
    runner_up       a plan up to this many times slower than the best is priced to its end. It stands beside the best
                    in the report; what is slower yet is dropped early.
    host_saves      share of a step that an offload nobody asked for has to save. The host has other uses; but with a
                    little less memory it is the only way, and more memory must not make a step noticeably longer.
    last_resorts    where nothing fits, candidates that are laid out with their leanest operators. They are sorted by
                    a bound on their bytes, which is close enough for the first few.
    leaner          plans at prices of bytes that are tried beside the fastest operators. What they gain falls off
                    quickly.
    far, further    times a limit that a plan with several stages on a rank may take for leaner operators to be tried,
                    the first and then others, since each has its stages searched: what they save falls off as quickly
    memory_budgets  times that the quickest operators under a memory limit are sought. Each moves the limit by what the
                    operator problem doesn't count; the last changes are below a percent.
    quick           operators are solved once for each tensor axis and priced for other microbatches. Bounds that solve
                    something are left out.
    micro_batches   sizes of microbatches, the smallest, that are tried beside the largest; in the second place where
                    the best plan recomputes or offloads, or none fits. None: all sizes.
    glances         candidates with several stages on a rank, those of the least bounds, whose stages are cut without a
                    search before any is searched. What they take is a limit that is near the best plan's time.
    vain_glances    glances in a row that limit nothing further, after which others wait for what is cheap to evaluate:
                    a quick plan of that leaves few of them worth one
    searched        candidates with several stages on a rank whose stages are searched, those of the quickest glances,
                    each once. None: all whose bound allows it, and for as long as that helps
    searched_again  the same of those that differ from a plan in stages on a rank alone, at a time, its operators theirs
    near            candidates within this many times the best of a quick search get operators of their own
    near_meshes     the most meshes for which that is done, the best plan's included
    many_operators  of all blocks, beyond which a full search is quick, too, but for the sizes of microbatches and its
                    tolerance: one program of 2,400 takes a second, each bound by such programs ten
    folded_operators  of all blocks, beyond which an experts' axis isn't tried beside a tensor axis: over two axes one
                    problem of 60 takes a second
    pin_operators   of all blocks, beyond which a quick search says what a pin costs: a full one without the pin takes
                    longer than that of the plan
    """

    tolerance: float = 0.002
    runner_up: float = 1.25
    host_saves: float = 0.004
    last_resorts: int = 6
    leaner: int = 6
    far: float = 1.1
    further: float = 1.03
    memory_budgets: int = 8
    quick: bool = False
    micro_batches: tuple[int, int] | None = None
    glances: int = 32
    vain_glances: int = 3
    searched: int | None = None
    searched_again: int = 3
    near: float = 1.08
    near_meshes: int = 2
    many_operators: int = 1000
    folded_operators: int = 100
    pin_operators: int = 64

    @property
    def beside(self) -> SearchBudget:
        """For systems beside the plan: each price is a real plan's, and the system's best may be a little quicker."""
        return replace(self, tolerance=max(self.tolerance, FAST.tolerance), searched=1, searched_again=1)


FULL = SearchBudget()
FAST = SearchBudget(tolerance=0.01, quick=True, micro_batches=(2, 4))


def budget_of(effort: str) -> SearchBudget:
    """The budget of an effort (``arguments.values.EFFORTS``)."""
    return FAST if effort == "fast" else FULL
