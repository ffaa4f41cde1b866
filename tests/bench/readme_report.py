"""The report that README.md quotes, of the plan that its first `autoplan plan` asks for.

python -m tests.bench.readme_report [--write README.md]
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from autoplan import Plan, cli, parallelize
from autoplan.cli.typed_words import parallelism, training
from autoplan.models.named import resolve_model
from tests.bench.prices.document import rewritten


def planned(command: str) -> Plan:
    """The plan of an `autoplan plan` command."""
    options = cli.parser().parse_args(shlex.split(command)[1:])
    request = resolve_model(options.model, options.config, options.batch, options.seq)
    pinned, trained = parallelism(options.parallelism), training(options.training)
    return parallelize(
        request.model, options.cluster_spec, request.example_inputs, parallelism=pinned, training=trained,
        effort=options.effort,
    )  # fmt: skip


def command_of(document: str) -> str:
    """The first `autoplan plan` of a document."""
    return next(line for line in document.splitlines() if line.startswith("autoplan plan "))


def parts(report: str) -> dict[str, str]:
    """What a document quotes of a report's screen: the plan, and why it is as it is."""
    head, why, *_ = report.split("\n\n")
    return {"report": f"```text\n{head}\n\n{why}\n...\n```"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document whose marked part is rewritten")
    given = parser.parse_args(arguments)
    document = (given.write or Path("README.md")).read_text(encoding="utf-8")
    printed = parts(planned(command_of(document)).report())
    print(printed["report"])
    if given.write:
        given.write.write_text(rewritten(document, printed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
