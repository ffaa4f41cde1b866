"""The folder that a plan is exported to, and which of its files are still the plan's."""
