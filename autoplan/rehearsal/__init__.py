"""Rehearsal: an exported program run whole, at full size, without a device: everything but the values.

A fake accelerator and fake process groups take what the folder's own program.py and the runtime launch, one rank of
each class. What they launched is then put together: every collective meets its other members, every message its
receiver, and the order on the streams admits a completion.

Modules, each importing only those before it:

    records          the trace that a rank writes
    device           the fake device
    expected_tokens  what a mixture counts, though no token has a value
    rank             one rank run
    rank_workers     several ranks side by side
    rank_classes     ranks that run the same calls
    world            all ranks together: whether calls meet, and the step
    pricing          the plan's prices against the calls
    outcome          the result and its text
    rehearse         a folder, rehearsed
"""
