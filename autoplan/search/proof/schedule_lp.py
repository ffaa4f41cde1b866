"""The same linear program with the whole schedule in it, in the place of some paths through it.

With z[i] the end of action i of kind c (a forward, a backward) of stage k, and D[c,k] its seconds with the message that
it receives:

    T  ≥  z[i]                              the last of each rank
    z[i]  ≥  z[j] + D[c,k]                  j the action before it on its rank, and the one that sends what it needs
    D[0,k]  ≥  Σ_p forward_p·d[k,p] + f_k + message
    D[1,k]  ≥  Σ_p backward_p·d[k,p] + recomputed(a, b) + e_k - f_k + message

T is then the schedule's time of the divisions in fractions, all of whose paths would be too many: where every
microbatch is in flight at once, thousands of them are as long. Its rows grow with the actions, so it is for schedules
of few microbatches (``short``); where these are many, a rank's own work is what counts, which few paths tell.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, vstack

from autoplan.cost.interleaved import splits
from autoplan.search.inter_op.chain_costs import Pieces
from autoplan.search.proof.interleaved_lp import Rows
from autoplan.solver.linear import Linear

ACTIONS = 8_000  # of a schedule: half a second for each 2,000
NOBODY = -1      # who fills a slot that is full from the first


def short(pieces: Pieces) -> bool:
    """Whether the schedule is one to write out."""
    return not splits(pieces.schedule) and pieces.rounds.script.kinds.size <= ACTIONS


def timeline(rows: Rows, limit_s: float = np.inf, *, whole: bool = False) -> Linear:
    """The program of the rows and of all actions, of schedules that are done by the limit; in fractions of segments
    or, solved for them, in whole ones."""
    inner, stages, script = rows.linear(tilted=True), rows.pieces.stages, rows.pieces.rounds.script
    variables = inner.rows.shape[1]
    duration = variables + np.arange(2 * stages).reshape(2, stages)
    ends = variables + 2 * stages + np.arange(script.kinds.size).reshape(script.kinds.shape)
    spent = durations(rows, duration, int(ends[-1, -1]) + 1)
    ordered = actions(rows, duration, ends)
    many = spent.shape[1]
    padded = csr_matrix(inner.rows)
    padded.resize(padded.shape[0], many)
    low, high = np.zeros(many), np.full(many, np.inf)
    low[:variables], high[:variables], high[0] = inner.low, inner.high, limit_s * rows.scale
    least = np.concatenate([inner.least, rows.arriving_s().ravel() * rows.scale, np.zeros(ordered.shape[0])])
    integers = np.zeros(many, dtype=bool)
    integers[:variables] = inner.integers
    return Linear(vstack([padded, spent, ordered]).tocsr(), least, low, high, integers, large=not whole)


def durations(rows: Rows, duration: np.ndarray, variables: int) -> csr_matrix:
    """D - what the segments of the stage take, of the forwards of all stages and then of the backwards."""
    stages, scale = rows.pieces.stages, rows.scale
    found = np.zeros((2 * stages, variables))
    forward_s, backward_s = rows.spent_s()
    full_s, part_s = rows.of("full_s")[rows.again], rows.of("part_s")[rows.again]
    for k in range(stages):
        there, back = found[k], found[stages + k]
        there[duration[0, k]], there[rows.f[k]], there[rows.d[k]] = 1.0, -1.0, -forward_s * scale
        back[duration[1, k]], back[rows.e[k]], back[rows.f[k]] = 1.0, -1.0, 1.0
        back[rows.d[k]] = -backward_s * scale
        back[rows.a[k]], back[rows.b[k]] = -(full_s - part_s) * scale, -part_s * scale
    return csr_matrix(found)


def actions(rows: Rows, duration: np.ndarray, ends: np.ndarray) -> csr_matrix:
    """z - D - z of the action before, for each of both before; and T - z of each rank's last."""
    script = rows.pieces.rounds.script
    filled = dict(zip(script.fills.ravel().tolist(), ends.ravel().tolist(), strict=True))
    filled.pop(NOBODY, None)
    before = np.full(ends.shape, NOBODY)
    before[:, 1:] = ends[:, :-1]
    sender = np.array([filled.get(slot, NOBODY) for slot in script.waits.ravel().tolist()]).reshape(ends.shape)
    spent = duration[script.kinds, script.stages]
    found: list[dict[int, float]] = []
    for end, spends, *others in np.stack([ends, spent, before, sender], axis=-1).reshape(-1, 4).tolist():
        known = [other for other in others if other != NOBODY]
        found += [{end: 1.0, spends: -1.0, other: -1.0} for other in known] or [{end: 1.0, spends: -1.0}]
    found += [{0: 1.0, last: -1.0} for last in ends[:, -1].tolist()]
    starts = np.cumsum([0, *map(len, found)])
    columns, values = (np.array([x for row in found for x in part(row)]) for part in (dict.keys, dict.values))
    return csr_matrix((values, columns, starts), shape=(len(found), int(ends[-1, -1]) + 1))
