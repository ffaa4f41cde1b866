"""The variable that names the folder in which a run's processes keep traces: known without an import of models."""

TRACES_FOLDER = "AUTOPLAN_TESTS_TRACES"
