"""Rows that earlier runs found by the same sources."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

from tests.bench.wide.cells import Cell, Row

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("autoplan", "cost_models", "tests/bench/architectures", "tests/bench/wide", "tests/support")


def sources_digest() -> str:
    """Of everything that makes models, plans and runs them."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def commit() -> str:
    """Where the sources are, with a plus where they differ from it."""
    told = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip()


def row_of(data: dict) -> Row:
    cells = {name: Cell(**(one | {"errors": tuple(one["errors"])})) for name, one in data["cells"].items()}
    return Row(data["name"], data["exported"], cells, data.get("commit", ""))


class Kept:
    """Rows by the digest of the sources and the model's name, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, dict]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def found(self, digest: str) -> dict[str, Row]:
        return {name: row_of(data) for name, data in self.rows.get(digest, {}).items()}

    def add(self, digest: str, row: Row) -> None:
        self.rows.setdefault(digest, {})[row.name] = asdict(replace(row, commit=row.commit or commit()))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows), encoding="utf-8")
