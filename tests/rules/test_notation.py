"""The notation stands by itself; what is read off it is tested beside the registry, in test_rule.py."""

from __future__ import annotations

import sys

from autoplan.rules import notation


def test_the_registry_hands_the_notation_on() -> None:
    registry = sys.modules["autoplan.rules.registry"]  # as an attribute of the package this is the decorator
    for name in ("Rule", "AxisStrategy", "letters", "kept"):
        assert getattr(registry, name) is getattr(notation, name)
