"""The timelines of GPipe and 1F1B by array operations: a search asks for thousands.

``forward``, ``backward`` [d] and ``send``, ``back`` [d-1] are seconds of one microbatch, ``ahead`` as of
``timeline.simulate``. The result is (the seconds from the first forward to the last backward, [d-1] those that each
border's readers wait for a message on its way), the same that ``timeline`` finds by running the actions.
"""

from __future__ import annotations

import numpy as np

Flow = tuple[float, np.ndarray]


def run_gpipe(
    forward: np.ndarray, backward: np.ndarray, send: np.ndarray, back: np.ndarray, microbatches: int, ahead: int
) -> Flow:
    """Two flow shops: the forwards front to back, then the backwards back to front.

    The last stage turns round when it has seen every microbatch; the others are done with their forwards by then. A
    receive that is posted one action ahead delays nothing here: the message before came over the same wire.
    """
    ready, waits = np.zeros(microbatches), np.zeros(len(send))
    for stage, duration in enumerate(forward):
        ready, waited = _stage(ready, duration, float(send[stage - 1]) if stage else 0.0, ahead)
        if stage:
            waits[stage - 1] += waited
    ready = np.full(microbatches, ready[-1])
    for stage in reversed(range(len(backward))):
        sent = float(back[stage]) if stage < len(back) else 0.0
        ready, waited = _stage(ready, backward[stage], sent, ahead)
        if stage < len(back):
            waits[stage] += waited
    return float(ready[-1]), waits


def _stage(made: np.ndarray, duration: float, message: float, ahead: int) -> tuple[np.ndarray, float]:
    """(when a stage's actions end whose inputs were ``made`` then, how long they wait for messages on their way)."""
    if not ahead:
        return _queue(made, message + duration), message * len(made)
    came = _queue(made, message)
    done = _queue(came, duration)
    free = np.append(0.0, done[:-1])
    return done, float(np.minimum(np.maximum(came - free, 0.0), message).sum())


def _queue(ready: np.ndarray, duration: float) -> np.ndarray:
    """When jobs end that arrive at ``ready`` and are served one after another: end[i] = max(end[i-1], ready[i]) + t."""
    served = duration * np.arange(1, len(ready) + 1)
    return served + np.maximum.accumulate(ready - (served - duration))


def run_1f1b(
    forward: np.ndarray, backward: np.ndarray, send: np.ndarray, back: np.ndarray, microbatches: int, ahead: int
) -> Flow:
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

    ends = np.zeros((1 + ahead, stages + 1))  # when a stage is done with its last action, and with those before it
    arrived = np.zeros((2, stages))           # when its last message of either kind came
    waited = np.zeros((2, stages))            # for messages on their way, by parity
    for step in rounds:
        parity, now = step % 2, active[step]
        inbox, free = arrived[parity], ends[0, :-1]
        made = np.maximum(ends[0, sender[parity]], ends[ahead, :-1])   # and the receive posted
        np.copyto(inbox, np.maximum(inbox, made) + transfer[parity], where=now)
        waited[parity] += np.minimum(np.maximum(inbox - free, 0.0), transfer[parity]) * now
        done = np.maximum(free, inbox) + duration[parity]
        for later in range(ahead, 0, -1):
            np.copyto(ends[later, :-1], ends[later - 1, :-1], where=now)
        np.copyto(free, done, where=now)
    onward = np.where(goes_on, waited, 0.0).sum(axis=0)
    return float(ends[0].max()), onward[1:] + (waited.sum(axis=0) - onward)[:-1]
