"""Runs models from their first values, and prints a table of what was seen."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autoplan.verify.local_ranks import RankPool
from tests.starts.models import MODELS
from tests.starts.run import RANKS, seen


def main(names: list[str]) -> int:
    table = Table("model", "planned from", "start", "losses off by", "s")
    wrong = 0
    with RankPool(RANKS, timeout_s=240) as pool, tempfile.TemporaryDirectory(prefix="autoplan-starts-") as root:
        for name in names or MODELS:
            for how in ("function", "module"):
                began_s = time.perf_counter()
                found = seen(name, how, pool, Path(root) / f"{name}-{how}")
                wrong += not found.equal
                start = f"differs: {', '.join(found.differing)}" if found.differing else "equal, bit for bit"
                seconds = f"{time.perf_counter() - began_s:.1f}"
                table.add_row(name, how, start, f"{found.loss_error:.1e}", seconds)
                print(f"{name} from its {how}: {start}, {seconds} s", file=sys.stderr, flush=True)
    Console(width=120).print(table)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
