"""The timelines of GPipe and 1F1B by array operations: a search asks for thousands.

``forward``, ``backward`` [d] and ``send``, ``back`` [d-1] are seconds of one microbatch; the result is the seconds from
the first forward to the last backward, the same that ``timeline`` finds by running the actions.
"""

from __future__ import annotations

import numpy as np


def run_gpipe(
    forward: np.ndarray, backward: np.ndarray, send: np.ndarray, back: np.ndarray, microbatches: int
) -> float:
    """Two flow shops: the forwards front to back, then the backwards back to front.

    The last stage turns round when it has seen every microbatch; the others are done with their forwards by then.
    """
    ready = np.zeros(microbatches)
    for stage, duration in enumerate(forward):
        done = _queue(ready, duration)
        ready = _queue(done, send[stage]) if stage < len(send) else np.full(microbatches, done[-1])
    for stage in reversed(range(len(backward))):
        done = _queue(ready, backward[stage])
        ready = _queue(done, back[stage - 1]) if stage else done
    return float(ready[-1])


def _queue(ready: np.ndarray, duration: float) -> np.ndarray:
    """When jobs end that arrive at ``ready`` and are served one after another: end[i] = max(end[i-1], ready[i]) + t."""
    served = duration * np.arange(1, len(ready) + 1)
    return served + np.maximum.accumulate(ready - (served - duration))


def run_1f1b(
    forward: np.ndarray, backward: np.ndarray, send: np.ndarray, back: np.ndarray, microbatches: int
) -> float:
    """1F1B in rounds: in round r, stage s runs forward (r-s)/2, or else backward (r-(2d-1-s))/2, whichever is whole.

    In that numbering a stage goes forward in the rounds of its own parity and back in the others, and what it waits for
    was run in the round before by its neighbour: so each round is a few array operations, whatever the true times.
    """
    stages, last = len(forward), 2 * (microbatches - 1)
    stage = np.arange(stages)
    goes_on = (stage - np.arange(2)[:, None]) % 2 == 0                 # [parity of the round, stage]
    duration = np.where(goes_on, forward, backward)
    sender = np.where(goes_on, stage - 1, stage + 1)                   # -1 and d are nobody: free[d], always 0
    transfer = np.where(goes_on, np.append(send, 0.0)[stage - 1], np.append(back, 0.0)[stage])
    rounds = np.arange(last + 2 * stages)
    begun = rounds[:, None] - np.where(goes_on, stage, 2 * stages - 1 - stage)[rounds % 2]
    active = (begun >= 0) & (begun <= last)

    free = np.zeros(stages + 1)                                        # when a stage is done with its last action
    arrived = np.zeros((2, stages))                                    # when its last message of either kind came
    for step in rounds:
        parity, now = step % 2, active[step]
        inbox = arrived[parity]
        np.copyto(inbox, np.maximum(inbox, free[sender[parity]]) + transfer[parity], where=now)
        np.copyto(free[:-1], np.maximum(free[:-1], inbox) + duration[parity], where=now)
    return float(free.max())
