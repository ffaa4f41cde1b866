"""The neighbours of a division of the chain, for tabu search.

A neighbour has a segment on another stage, or another count of segments recomputed; with as much recomputed beside as
its ranks then need to fit, and no more.

Of all that there are, those are looked at that shorten known paths through the schedule most, and those in which a
segment stays near: with the next stage, or on its rank, where other microbatches are in flight.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.cost.interleaved import splits
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, Divisions
from autoplan.search.inter_op.rank_excess import RankExcess
from autoplan.search.inter_op.stage_model import FULL, PART

LOOKED_AT = 64  # of the moves of segments, and of the changes of what is recomputed
MENDED = 4      # segments on each rank that are recomputed beside, or that needn't be any more
CHANGES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))  # of a stage's counts, in full and selectively


def neighbours(costs: ChainCosts, division: Division, paths: np.ndarray) -> tuple[Divisions, np.ndarray]:
    """(divisions, bytes by which the fullest rank of each exceeds the memory limit)

    paths  [paths, DURATIONS, v·d]
    """
    here = Divisions.of(division)
    lengths_s = np.tensordot(paths, costs.durations_s(division), 2)
    found = moved(costs, here, paths, lengths_s)
    if costs.recompute == "auto" and costs.repeated.any():
        others = recomputed_otherwise(costs, here, lengths_s, again_s(costs, paths))
        if not len(found) + len(others):
            return found, np.zeros(0)
        number = np.minimum(np.arange(len(found) + len(others)), len(found))  # stages of others are those that are here
        ranks = costs.before_recomputation(joined(found, here)).picked(number)
        found = joined(found, others)
        over = ranks.recomputing(found.full.T, found.part.T)
        ways = [fitting(costs, found, ranks, over, kind) for kind in ((FULL, PART) if saves(costs) else (FULL,))]
        return joined(*(way for way, _ in ways)), np.concatenate([beyond for _, beyond in ways])
    return (found, costs.most_excess(found)) if len(found) else (found, np.zeros(0))


def saves(costs: ChainCosts) -> bool:
    """Whether selective recomputation keeps less."""
    return bool((costs.memory.kept > costs.memory.selective)[costs.repeated].any())


def joined(*parts: Divisions) -> Divisions:
    ends, full, part = (np.concatenate([getattr(p, name) for p in parts]) for name in ("ends", "full", "part"))
    return Divisions(ends, full, part)


def shortest(reached_s: np.ndarray) -> np.ndarray:
    """The numbers of those that are looked at."""
    chosen = np.argsort(reached_s, kind="stable")[:LOOKED_AT]
    return np.asarray(chosen[np.isfinite(reached_s[chosen])])


def moved(costs: ChainCosts, here: Divisions, paths: np.ndarray, lengths_s: np.ndarray) -> Divisions:
    """One stage has a segment less and another one more, the borders between along with it. Their paths are looked at
    as if all segments were like the last of their stage."""
    ends = here.ends[0]
    givers = np.flatnonzero(np.diff(ends) > 1)
    last = ends[givers + 1] - 1
    weights_s = costs.weights_s[last]
    gained = np.zeros((len(paths), givers.size, costs.stages))  # of each giver's segment, on each stage
    for kind, seconds in enumerate((costs.forward_s[last], costs.backward_s[last] - weights_s, weights_s)):
        gained += paths[:, kind, None] * seconds[:, None]
    left = np.take_along_axis(gained, givers[None, :, None], axis=2)
    apart = np.abs(givers[:, None] - np.arange(costs.stages))
    reached = np.where(apart == 0, np.inf, (lengths_s[:, None, None] - left + gained).max(axis=0))
    near = np.where((apart == 1) | (apart % costs.ranks == 0), reached, np.inf)
    number, target = np.divmod(np.union1d(shortest(reached.ravel()), shortest(near.ravel())), costs.stages)
    source, border = givers[number][:, None], np.arange(len(ends))
    forth = (source < border) & (border <= target[:, None])
    back = (target[:, None] < border) & (border <= source)
    full, part = (np.repeat(counts, len(source), axis=0) for counts in (here.full, here.part))
    found = Divisions(ends - forth + back, full, part)
    counts, none = costs.counts_of(found), np.zeros_like(full)
    if costs.recompute in (FULL, PART):
        return replace(found, full=counts, part=none) if costs.recompute == FULL else replace(found, part=counts)
    full = np.minimum(full, counts)
    return replace(found, full=full, part=np.minimum(part, counts - full))


def recomputed_otherwise(
    costs: ChainCosts, here: Divisions, lengths_s: np.ndarray, each_s: tuple[np.ndarray, np.ndarray]
) -> Divisions:
    """A stage recomputes a segment more, less or otherwise; or less, and another one of its rank more. Their paths are
    looked at as if all segments were alike.

    each_s  as of ``again_s``
    """
    part = saves(costs)
    alone = [change for change in CHANGES if part or not change[1]]
    counts = np.stack([here.full[0], here.part[0]])
    free = costs.counts_of(here)[0] - counts.sum(axis=0)
    reached = [
        np.where(
            (counts[0] + full >= 0) & (counts[1] + some >= 0) & (free >= full + some),
            (lengths_s[:, None] + (each_s[0] * full + each_s[1] * some)).max(axis=0), np.inf,
        )
        for full, some in alone
    ]  # fmt: skip
    for kind in range(1 + part):  # [stage that gives, chunk that takes]
        givers = np.flatnonzero(counts[kind])
        takes_s = costs.by_rank(each_s[kind]).swapaxes(1, 2)[:, givers % costs.ranks]
        longest_s = (lengths_s[:, None, None] + (takes_s - each_s[kind][:, givers, None])).max(axis=0)
        able = costs.by_rank(free > 0).T[givers % costs.ranks]
        able[np.arange(len(givers)), givers // costs.ranks] = False
        moved_s = np.full((costs.stages, costs.virtual_stages), np.inf)
        moved_s[givers] = np.where(able, longest_s, np.inf)
        reached.append(moved_s.ravel())
    chosen = shortest(np.concatenate(reached))
    found = np.repeat(counts[:, None], len(chosen), axis=1)
    rows, moves = np.arange(len(chosen)), chosen - len(alone) * costs.stages
    change, stage = np.divmod(chosen[moves < 0], costs.stages)
    found[:, rows[moves < 0], stage] += np.array(alone).T[:, change]
    rows, moves = rows[moves >= 0], moves[moves >= 0]
    which, move = np.divmod(moves, costs.stages * costs.virtual_stages)
    giver, chunk = np.divmod(move, costs.virtual_stages)
    found[which, rows, giver] -= 1
    found[which, rows, chunk * costs.ranks + giver % costs.ranks] += 1
    return Divisions(np.repeat(here.ends, len(chosen), axis=0), *found)


def runs_again(costs: ChainCosts, paths: np.ndarray) -> np.ndarray:
    """[paths, v·d]: how often each path runs what a stage recomputes."""
    backward = paths[:, 1].astype(float)
    if splits(costs.schedule):
        backward[:, 0] = paths[:, 2, 0]
    return backward


def again_s(costs: ChainCosts, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[paths, v·d] each: what a segment that runs again on a stage adds to each path, in full and selectively."""
    backward, places = runs_again(costs, paths), costs.repeated
    return backward * float(costs.full_s[places].mean()), backward * float(costs.part_s[places].mean())


def fitting(
    costs: ChainCosts, many: Divisions, ranks: RankExcess, over: np.ndarray, kind: str
) -> tuple[Divisions, np.ndarray]:
    """The same with a few segments more recomputed, in full or selectively, on ranks that exceed the memory limit, of
    those stages of which most is held; and fewer, of those of which least is, where they fit without. With it the bytes
    by which the fullest rank of each then exceeds the limit.

    ranks  what they need, whatever they recompute
    over   [d, many]: the bytes by which ranks exceed the limit while they run
    """
    most, counts, memory = costs.most_held.T[..., None], costs.counts_of(many).T, costs.memory
    more, other = (many.full.T.copy(), many.part.T) if kind == FULL else (many.part.T.copy(), many.full.T)
    keeps = memory.inputs if kind == FULL else memory.selective
    saved, over = float((memory.kept - keeps)[costs.repeated].max()), over.copy()

    def change(rows: np.ndarray, chosen: np.ndarray, which: np.ndarray, by: int) -> np.ndarray:
        """Of the divisions with these numbers those that changed, on the chosen stage of each rank for which ``which``
        stands."""
        rank, place = np.nonzero(which)
        more[chosen[rank, place] * costs.ranks + rank, rows[place]] += by
        changed = rows[np.flatnonzero(np.bincount(place))]
        counted = (more[:, changed], other[:, changed])
        over[:, changed] = ranks.picked(changed).recomputing(*(counted if kind == FULL else counted[::-1]))
        return changed

    rows = np.flatnonzero((over > 0).any(axis=0))
    for _ in range(MENDED):
        able = np.where(ranks.by_rank(more[:, rows] + other[:, rows] < counts[:, rows]), most, -np.inf)
        which = (over[:, rows] > 0) & np.isfinite(able.max(axis=0))
        if not which.any():
            break
        rows = change(rows, able.argmax(axis=0), which, 1)
    rows = np.arange(len(many))
    for _ in range(MENDED):
        able = np.where(ranks.by_rank(more[:, rows] > 0), most, np.inf)
        which = over[:, rows] + saved * able.min(axis=0) <= 0
        if not which.any():
            break
        rows = change(rows, able.argmin(axis=0), which, -1)
    found = replace(many, full=more.T) if kind == FULL else replace(many, part=more.T)
    return found, np.maximum(over, ranks.emptied).max(axis=0)
