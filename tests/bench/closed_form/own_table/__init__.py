"""A table of one's own steps, priced by the closed form: python -m tests.bench.closed_form --table my.csv.

Order: `columns` (what a line may say, and how it becomes a case), `printed` (lines and errors as text).
"""
