"""docs/appendix/two_nodes.md: what became of each system on two nodes.

Its parts stand between <!-- name --> and <!-- /name -->. A part that didn't run stays as the page has it: step times
want a quiet machine, and trainings take long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.bench.two_nodes.cases import Case
from tests.bench.two_nodes.trainings import FLOAT64, HALF, RATE, STEPS, Row
from tests.kill.case import Outcome

HEADER = f"""# Two nodes

Every named system and each all-reduce, planned for two nodes and run on them: two network namespaces of one machine,
joined by a link of {RATE}, with `torchrun --nnodes 2` in each. In float64, with AdamW, each step on another batch.
Steps 1-{HALF} are taken on two nodes and a checkpoint is written; torchrun is started again on both, loads it, and
takes steps {HALF + 1}-{STEPS}. What it ends with is compared with the same plan's {STEPS} steps on one node, bit for
bit: losses, parameters, optimizer state; and with the user's module on one device, whose parameters are to agree to
{FLOAT64.parameters:.0e}.

```sh
make two-nodes          # python -m tests.bench.two_nodes --two-nodes PATH --write docs/appendix/two_nodes.md
```

"""


def document(
    rows: Sequence[Row], left_out: Sequence[Case], outcomes: Sequence[Outcome], steps: str = "", before: str = ""
) -> str:
    """The page; ``steps``: its part of step times, ``before``: the page as it is, whose parts stay where this run has
    none of theirs."""
    parts = {
        "trainings": "\n\n".join(filter(None, (table(rows), reasons(left_out)))) if rows else "",
        "script": scripts(outcomes),
        "steps": steps,
    }
    texts = {name: text or kept(name, before) for name, text in parts.items()}
    bounded = (f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n" for name, text in texts.items() if text)
    return HEADER + "\n".join(bounded)


def kept(name: str, before: str) -> str:
    """A part of the page as it is; "" where it has none."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", before, re.DOTALL)
    return found[1] if found else ""


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| system | nodes x processes | plan | resumed, against one node | parameters, against one device | equal |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        device = row.stale or "stale on purpose" if row.device is None else f"{row.device:.1e}"
        same = "bit for bit" if row.losses and not row.different else f"{len(row.different)} tensors differ"
        passed = "yes" if row.passed else "NO"
        cells = [f"`{row.case.system}`", f"2x{row.case.processes}", row.plan, same, device, passed]
        if row.problem:
            cells[2:] = [row.plan, row.problem, "", "NO"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reasons(left_out: Sequence[Case]) -> str:
    """Why a system isn't in the table."""
    return "\n".join(f"- `{case.system}` isn't there: {case.reason}" for case in left_out)


def scripts(outcomes: Sequence[Outcome]) -> str:
    """What became of train.py."""
    if not outcomes:
        return ""
    lines = [
        "`train.py` itself, under `torchrun --nnodes 2 --nproc-per-node 2 --max-restarts`, dropout on; a rank gets",
        "SIGKILL now and then, and both nodes start again. At the end parameters, optimizer state, random state and",
        "metrics against one node that nobody disturbed:",
        "",
    ]
    for outcome in outcomes:
        ranks = ", ".join(f"rank {kill.rank} after step {kill.steps}" for kill in outcome.kills)
        said = "bit for bit" if not outcome.different else f"DIFFERENT: {', '.join(outcome.different)}"
        lines.append(f"- {outcome.plan}: killed {ranks}; {said}")
    return "\n".join(lines)
