"""Processes that start, find one another, hang, fail and stop; and what is said of it."""
