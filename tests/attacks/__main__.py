"""Runs attacks, and prints a table of what was seen."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attacks.attack import Attack, Lost, Place, Pools, Silent
from tests.attacks.catalog import ATTACKS


def main(words: list[str]) -> int:
    chosen = [a for a in ATTACKS if not words or any(w in f"{a.item} {a.name} {a.guards}" for w in words)]
    table = Table("what", "attack", "guards against", "seen", "s")
    counts: Counter[str] = Counter(silent=0, lost=0, traceback=0)
    with contextlib.ExitStack() as stack:
        pools = Pools(stack, {})
        for attack in chosen:
            began_s = time.perf_counter()
            kind, seen = outcome(attack, pools)
            counts[kind] += 1
            print(f"{kind:9} {attack.item}: {attack.name}", file=sys.stderr, flush=True)
            table.add_row(attack.item, attack.name, attack.guards, seen, f"{time.perf_counter() - began_s:.1f}")
    Console(width=180).print(table)
    wrong = ", ".join(f"{kind} {count}" for kind, count in counts.items() if kind != "passed")
    print(f"{len(chosen)} attacks: {wrong}")
    return int(counts["passed"] < len(chosen))


def outcome(attack: Attack, pools: Pools) -> tuple[str, str]:
    """How an attack ended: "passed", "silent", "lost" or "traceback"; and what was seen."""
    with tempfile.TemporaryDirectory(prefix="autoplan-attack-") as name:
        try:
            return "passed", attack.run(Place(Path(name), pools))
        except Silent as error:
            return "silent", str(error)
        except Lost as error:
            return "lost", str(error)
        except Exception as error:
            return "traceback", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
