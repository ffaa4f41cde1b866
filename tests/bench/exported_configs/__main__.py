"""Recipes as other trainers' configurations: docs/appendix/exported_configs.md, by ``make exported-configs``.

    python -m tests.bench.exported_configs [--from FILE] [--only ROW …] [--kept FILE] [--write FILE]

Trainers that aren't installed are told so. What was found is kept, so that a run that was cut off goes on where the
sources are the same. Ends with status 1 where a configuration is refused by its parser, or has another price back.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.bench.exported_configs.cells import check, row_of
from tests.bench.exported_configs.document import document, line, summary
from tests.bench.recipes.__main__ import sources_digest
from tests.bench.recipes.row import BESIDE, Recipe, read

ROWS = (
    "r026", "r038", "r039", "r081", "r082", "r134", "r135", "r136", "r145", "r146", "r149", "r150", "r151", "r152",
    "r153", "r155", "r195", "r214", "r233", "r234",
)  # fmt: skip
"""Of models from 1.3 to 70 billion parameters: FSDP, tensor, pipeline, interleaved, context, experts, and mixtures."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="file", type=Path, default=BESIDE, help="the recipes, a CSV file")
    parser.add_argument("--only", nargs="+", metavar="ROW", default=ROWS, help="these rows")
    parser.add_argument("--kept", type=Path, default=Path("build/exported_configs.json"), help="what was found so far")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document")
    given = parser.parse_args(arguments)
    if not given.file.exists():
        parser.error(f"{given.file} doesn't exist: say with --from where the recipes are")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    recipes = {row.name: row for row in read(given.file) if isinstance(row, Recipe)}
    kept: dict[str, dict] = json.loads(given.kept.read_text(encoding="utf-8")) if given.kept.exists() else {}
    digest, rows = sources_digest(), []
    for name in given.only:
        key = f"{digest} {name}"
        if key not in kept:
            kept[key] = check(recipes[name]).to_dict()
            given.kept.parent.mkdir(parents=True, exist_ok=True)
            given.kept.write_text(json.dumps(kept), encoding="utf-8")
        rows.append(row_of(kept[key]))
        print(" | ".join(line(rows[-1])), flush=True)
    print(summary(rows))
    if given.write:
        given.write.write_text(document(rows), encoding="utf-8")
    cells = [cell for row in rows for cell in (row.cells or {}).values() if cell.exported_s and not cell.absent]
    return int(any(not cell.same for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
