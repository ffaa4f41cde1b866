"""One search in progress: what is known of the model and the cluster, and every setting priced so far."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoplan.cluster import ClusterSpec
from autoplan.cost.interleaved import runs_rounds
from autoplan.cost.step import optimizer_passes, reduced_ratio, stored_ratio
from autoplan.ir.graph import Model, batch_rows
from autoplan.options import Inference, Parallelism, Training
from autoplan.rules.constraints import Constraint, check_targets
from autoplan.search.bounds.floors import least_bytes, lower_bound
from autoplan.search.evaluate import TOLERANCE, Evaluated, Evaluator
from autoplan.search.intra_op.options import Prepared, prepare
from autoplan.search.operator_problems import Operators, uses_tensor_axis
from autoplan.search.space.candidates import Limits, Setting, check_pinned, no_setting, settings
from autoplan.search.space.offload import check_offload

PROVEN = 0.0075  # a gap that is worth no more proof
PROVEN_DEAR = 0.0095  # the same where proof is dear
HOST_SAVES = 0.01  # of a step, that an offload nobody asked for has to save: the host has other uses
QUICK_TOLERANCE = 0.01  # as TOLERANCE, where an answer shall be quick
ROWS_TRIED = 2  # sizes of a microbatch, the smallest, that are tried beside the largest where an answer shall be quick
ROWS_TRIED_SHORT = 4  # the same where the best has to recompute, or nothing fits
LEAST_TRIES = 6  # settings that are laid out for the one that needs least, by what they hold at least
NEAR = 1.08  # times a quick best, within which others are given operators of their own
SETTLED = 2  # meshes, that one included
DIVIDED = 2  # times the work of all operator problems, after which no further setting's cells are looked at
DIVIDED_LEAST = 20_000  # steps of the simplex method, where these problems were hardly any, having been solved before
PROOFS = 4  # settings of several stages on a rank whose bound, as tight as is known, may be too low


@dataclass
class Work:
    """What a search knows. ``found`` holds every setting that was priced, None where nothing of it fits; ``least`` what
    no plan of a setting undercuts under a wall, where that was sought."""

    prepared: Prepared
    cluster: ClusterSpec
    training: Training | Inference
    limits: Limits
    operators: Operators
    evaluator: Evaluator
    found: dict[Setting, Evaluated | None] = field(default_factory=dict)
    least: dict[tuple[Setting, float], float] = field(default_factory=dict)
    divided: set[tuple[Setting, float]] = field(default_factory=set)

    def best(
        self, candidates: Sequence[Setting], wall: float, best: Evaluated | None = None, saves: float = 0.0
    ) -> Evaluated | None:
        """The fastest of the settings under a wall, or ``best`` where none is quicker by more than a share of it,
        ``saves``. Where an answer shall be quick, those of a few sizes of microbatches; of more where bytes are
        short."""
        small = [s for s in candidates if least_bytes(self.operators, s, self.training) <= wall]
        under_s = math.inf if best is None else best.step_s * (1 - saves)
        if not self.operators.quick:
            return self.best_of(small, wall, best, under_s)
        found = self.best_of(few(small, ROWS_TRIED), wall, best, under_s)
        short = found is None or found.recomputes
        return self.best_of(few(small, ROWS_TRIED_SHORT), wall, found, under_s) if short else found

    def best_of(
        self, small: Sequence[Setting], wall: float, best: Evaluated | None, under_s: float
    ) -> Evaluated | None:
        """The same of all of these that take less than ``under_s``; those whose bound is above are not priced."""
        close = QUICK_TOLERANCE if self.operators.quick else TOLERANCE
        queue = [(lower_bound(self.operators, s), s, 0) for s in small]
        heapq.heapify(queue)
        later: list[tuple[float, Setting, int]] = []
        while queue or later:
            if later and (best is not None or not self.any_cheap(queue)):
                queue, later = sorted([*queue, *later]), []
            bound_s, setting, asked = heapq.heappop(queue)
            limit_s = min(under_s, best.step_s * (1 - close) if best is not None else math.inf)
            if bound_s >= limit_s and not later:
                break
            if bound_s >= limit_s:  # nothing else that is quick to price fits
                queue, later = sorted(later), []
                continue
            if best is None and asked and self.dear(setting) and self.any_cheap(queue):
                later.append((bound_s, setting, asked))  # a limit first: at it most are given up
                continue
            if asked < len(self.bounds(setting)):
                bound_s = max(bound_s, self.bounds(setting)[asked](setting, wall, limit_s))
                heapq.heappush(queue, (bound_s, setting, asked + 1))
                continue
            found = self.evaluate(setting, wall, limit_s)
            if found is not None and found.step_s < (under_s if best is None else min(best.step_s, under_s)):
                best = found
        return best

    def any_cheap(self, queue: Sequence[tuple[float, Setting, int]]) -> bool:
        """Whether some setting is priced as soon as it is bounded."""
        return not all(self.dear(setting) for _, setting, _ in queue)

    def bounds(self, setting: Setting) -> tuple[Callable[[Setting, float, float], float], ...]:
        """What is asked, before a setting is priced, of what no plan of it undercuts: quicker answers first."""
        if self.operators.quick:
            return ()
        return (self.shared_s, self.chunked_s) if self.dear(setting) else (self.shared_s,)

    def dear(self, setting: Setting) -> bool:
        """Whether pricing a setting takes so much longer than a tighter bound that the bound comes first."""
        return runs_rounds(setting.schedule) and not self.operators.quick

    def shared_s(self, setting: Setting, wall: float, enough_s: float = math.inf) -> float:
        """By its operators alone, then by what pipeline ranks can hold."""
        rough_s = self.evaluator.rough_s(setting)
        if rough_s >= enough_s:
            return rough_s
        if (setting, wall) not in self.least:
            self.least[setting, wall] = self.evaluator.shared_s(setting, wall)
        return self.least[setting, wall]

    def chunked_s(self, setting: Setting, wall: float, enough_s: float = math.inf) -> float:
        """By the cuts of its chain in fractions."""
        if (setting, wall) not in self.divided:
            self.divided.add((setting, wall))
            least_s = self.evaluator.least_s(setting, wall, enough_s, whole=False)
            self.least[setting, wall] = max(least_s, self.least.get((setting, wall), 0.0))
        return self.least[setting, wall]

    def settled(self, best: Evaluated, wall: float) -> Evaluated:
        """A quick best, and what came near it on other meshes, with operators of their own where those are faster."""
        priced = [found for found in self.found.values() if found is not None and found.step_s <= NEAR * best.step_s]
        nearest: dict[tuple[int, int, int], Evaluated] = {}
        for found in [best, *sorted(priced, key=lambda e: e.step_s)]:
            nearest.setdefault((found.setting.pp, found.setting.dp, found.setting.tp), found)
        for near in list(nearest.values())[:SETTLED]:
            own = self.operators.solved_anew(near.setting)
            anew = Evaluator(own, self.training).evaluate(near.setting, wall)
            best = min((e for e in (best, anew) if e is not None), key=lambda e: e.step_s)
        return best

    def gap(self, best: Evaluated, candidates: Sequence[Setting], wall: float) -> float:
        """Two-sided, relative: how far below the best a plan of any setting could still lie, by what is proven.

        What no plan undercuts is sought only where the cheap bounds leave more than ``PROVEN`` open, and of ranks
        on several kinds of device, for whose operators their own gap says nothing. An offload that nobody asked for,
        and that would save too little to be taken, isn't counted. Cells of operators are divided for the settings that
        come first, until that took some times the work of the search itself, the last of them at most once more; others
        are bounded without. Where ranks have several stages ``PROVEN_DEAR`` is enough.
        """

        def counts(setting: Setting) -> float:
            offloads = setting.offload not in ("none", best.setting.offload)
            return 1 / (1 - HOST_SAVES) if offloads else 1.0

        least_s, open_ = best.step_s * (1 - PROVEN), []
        for setting in candidates:
            found, known_s = self.found.get(setting), self.least.get((setting, wall), 0.0)
            if found is not None and self.unhindered(found):
                open_.append((max(known_s, found.step_s * (1 - found.gap)) * counts(setting), setting))
            elif setting in self.found or (setting, wall) in self.least:
                open_.append((max(known_s, self.evaluator.rough_s(setting)) * counts(setting), setting))
        solved, divided = self.operators.steps
        proofs, worth = PROOFS, divided + max(DIVIDED * solved, DIVIDED_LEAST)
        for _, bound_s, setting in sorted((s.tp > 1 or self.dear(s), bound_s, s) for bound_s, s in open_):
            if bound_s >= least_s:  # what quick ones, then those with the least bound prove, others needn't be asked
                continue
            if proofs or not self.dear(setting):
                left = worth - self.operators.steps[1]
                divides = max(left, solved) if left > 0 else 0.0
                enough_s = min(least_s, best.step_s * (1 - PROVEN_DEAR)) if self.dear(setting) else least_s
                proven_s = self.evaluator.least_s(setting, wall, enough_s / counts(setting), divides=divides)
                bound_s = max(bound_s, proven_s * counts(setting))
                proofs -= self.dear(setting) and bound_s < enough_s
            least_s = min(least_s, bound_s)
        return 1 - least_s / best.step_s

    def unhindered(self, found: Evaluated) -> bool:
        """Whether a setting's best is what it would be without a wall, on devices alike."""
        several = runs_rounds(found.setting.schedule) and found.loads.chain.shares  # counted for each that reads it
        if found.recomputes or found.loads.ranks or several:
            return False
        fastest, other = self.operators.fastest(found.setting), self.evaluator.together(found.setting)
        return found.point is fastest and other is None

    def evaluate(self, setting: Setting, wall: float, limit_s: float = math.inf) -> Evaluated | None:
        found = self.evaluator.evaluate(setting, wall, limit_s, self.least.get((setting, wall), 0.0))
        if found is not None and found.exceeds_host:
            found = None
        self.found[setting] = found
        return found

    def at_last(self, candidates: Sequence[Setting], wall: float) -> Evaluated | None:
        """Where nothing was found to fit: of the settings that hold least, the fastest plan of the operators that do,
        if any fits."""
        sized = sorted((least_bytes(self.operators, s, self.training), s) for s in candidates)
        best: Evaluated | None = None
        for least, setting in sized[:LEAST_TRIES]:
            lean = self.evaluator.leanest(setting) if least <= wall else None
            if lean is None or self.evaluator.idle(setting, lean.point):
                continue
            found = self.evaluator.with_point(setting, lean.point, wall) or lean
            if found.over_bytes(wall) == 0 and not found.exceeds_host:
                self.found[setting] = found
                best = found if best is None or found.step_s < best.step_s else best
        return best

    def leanest(self, candidates: Sequence[Setting], wall: float) -> Evaluated | None:
        """Of settings none of which fits, the one that comes nearest: everything recomputed, the leanest operators.
        None where none runs at all."""
        nearest = sorted(candidates, key=lambda s: least_bytes(self.operators, s, self.training))[:3]
        found = [self.evaluator.leanest(nearly) for nearly in nearest]
        return min((e for e in found if e is not None), key=lambda e: e.over_bytes(wall), default=None)

    def pinned_to(self, parallelism: Parallelism) -> Work:
        """The same model and cluster under other pinned fields, sharing what doesn't depend on them."""
        operators = self.operators.pinned_to(parallelism)
        if operators is self.operators:
            return replace(self, found={})
        evaluator = Evaluator(operators, self.training, schedules=self.evaluator.schedules)
        return replace(self, operators=operators, evaluator=evaluator, found={}, least={}, divided=set())


def begin(
    model: Model,
    cluster: ClusterSpec,
    training: Training | Inference,
    parallelism: Parallelism,
    constraints: Sequence[Constraint] = (),
    *,
    quick: bool = False,
) -> Work:
    """Everything that stands before the first setting: rules, the batch's axes, checks of what is pinned."""
    trains = isinstance(training, Training)
    check_offload(parallelism, cluster, training)
    check_targets(constraints, model)
    prepared = prepare(model, constraints, fuses=training.compile, training=trains)
    only_one = tuple((axis, split.reason) for axis, split in prepared.batch.items() if split.reason)
    sizes = (cluster.devices, cluster.devices_per_node, batch_rows(model), len(model.segments))
    limits = Limits(*sizes, only_one, training.compile or not trains)
    candidates(limits, parallelism)
    passes = optimizer_passes(training)
    split, sequence = uses_tensor_axis(parallelism), parallelism.sequence_parallel
    stored = stored_ratio(training)
    operators = Operators(
        prepared, cluster.topology(), training.compile, passes, split, sequence, stored, quick, reduced_ratio(training)
    )
    return Work(prepared, cluster, training, limits, operators, Evaluator(operators, training))


def few(settings: Sequence[Setting], most: int) -> list[Setting]:
    """Those with so many of the smallest microbatches of each mesh, and with the largest: of long sequences larger ones
    gain little and need more memory; of vectors and short sequences small ones leave a device idle."""
    rows: dict[tuple, set[int]] = {}
    for s in settings:
        rows.setdefault((s.pp, s.dp, s.factors), set()).add(s.micro_batch)
    tried = {mesh: {*sorted(sizes)[:most], max(sizes)} for mesh, sizes in rows.items()}
    return [s for s in settings if s.micro_batch in tried[s.pp, s.dp, s.factors]]


def candidates(limits: Limits, parallelism: Parallelism) -> list[Setting]:
    """Every setting that is left; ParallelismError where what is pinned leaves none."""
    check_pinned(limits, parallelism)
    found = list(settings(limits, parallelism))
    if not found:
        raise no_setting(limits, parallelism)
    return found
