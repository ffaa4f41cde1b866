"""Faults put into rehearsed programs and traces: whether a rehearsal finds each, at its rank and line.

Order: `worlds` (plans, rehearsed), `traces` (faults in the calls of one rank), `programs` (faults in program.py).
"""
