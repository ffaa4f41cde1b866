"""The folder that a plan is exported to, and which of its files are still the plan's.

An export replaces only files that an export wrote and nobody edited.

Order: `owned_files` (checksums and edits), `folder` (plan.json, program.py, train.py or run.py, report.html),
`found` (what was asked of the plan since), `perfetto` (the predicted step as a trace).
"""
