"""Measure this machine and write its profile: ``torchrun … -m cost_models.calibrate --out mine.toml``.

``cases`` says what is measured and what the cost models predict for it, without torch; ``operators`` and
``collectives`` run a case, ``measure`` times them on all ranks at once; ``fit`` finds the figures under which the
predictions meet the measurements, and ``write`` puts them in a profile.
"""
