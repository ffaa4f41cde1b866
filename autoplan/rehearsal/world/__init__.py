"""All ranks together: from the calls of one rank of each class what the whole world does.

Whether every collective meets its members and every message its peer; whether the order on the streams admits an end;
and, with a price on each call, how long the step takes. Nothing here needs torch.

Modules, each importing only those before it:

    rank_equivalence  classes of ranks that no simulation tells apart
    channels          calls by the stream or group that orders them
    alignment         where two sequences first differ
    sentences         mismatches in words
    matching          calls that meet no partner
    script            a trace as the simulator's events
    deadlock          a deadlock in words: who waits for whom
    simulation        runs the events; finds deadlocks
    simulated_step    the step
"""
