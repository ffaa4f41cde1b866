"""Measured beside predicted peak memory of each rank: ``python -m tests.bench.memory``."""
