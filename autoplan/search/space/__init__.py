"""The candidates: axes and their roles, named systems, constraints, several kinds of device."""
