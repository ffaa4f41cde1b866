"""The matrix of named systems: each one planned by name, exported, loaded on its ranks and compared with one device.

    python -m tests.bench.systems [--write docs/appendix/systems.md] [--system NAME] [--model NAME]

``make correctness`` uses the same parts for its table of models under parallelisms.
"""
