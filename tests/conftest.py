"""Loads what every test runs under, where tests run: under xdist the process that hands them out runs none, and would
import torch before it starts those that do."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    hands_out = bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")
    if not hands_out:
        config.pluginmanager.import_plugin("tests.support.session")
