"""Configurations as text: YAML and flags, of plain values and nested mappings."""

import json
from collections.abc import Mapping


def yaml(data: Mapping[str, object], indent: int = 0) -> str:
    """Nested mappings of plain values; JSON's scalars are YAML's."""
    lines = []
    for key, value in data.items():
        pad = " " * indent
        if isinstance(value, Mapping):
            lines.append(f"{pad}{key}:\n{yaml(value, indent + 2)}")
        else:
            lines.append(f"{pad}{key}: {json.dumps(value)}\n")
    return "".join(lines)


def flags(options: Mapping[str, object]) -> str:
    """``--name value`` a line; True stands alone, False and None are left out."""
    said = (f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items()
            if value is not None and value is not False)  # fmt: skip
    return " \\\n".join(said) + "\n"
