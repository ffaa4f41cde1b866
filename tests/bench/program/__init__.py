"""The emitted program beside what a module's author would run by hand: ``python -m tests.bench.program``."""
