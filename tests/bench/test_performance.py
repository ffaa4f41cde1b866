"""The short table of the pairs says what the long one does."""

import re
from pathlib import Path

from tests.bench.performance import PAIRS, SECTION, pairs_of, performance_table, spread

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
TEXT = """Measured on 2026-01-02 at commit abc on CPUs

| by hand | model | precision | CPU | quartiles | calls | saved bytes | collectives | bytes |
|---|---|---|--:|---|--:|--:|--:|--:|
| DDP | Llama | fp32 | 0.97 | 0.93–1.00 | 0.96 | 1.00 | 12 : 6 | 10 : 9 |
| DDP | GPT-2, dropout | fp32 | 1.04 | 1.00–1.05 | – | 0.55 | 12 : 6 | 10 : 9 |

| by hand | another table |
"""


def test_a_line_has_the_spread_of_its_pairs() -> None:
    lines = performance_table(TEXT).splitlines()
    assert lines[0] == "Measured on 2026-01-02."
    assert lines[-1] == "| DDP | GPT-2, Llama | 0.97 to 1.04 | 0.96 to 0.96 | 0.55 to 1.00 |"
    assert spread(["–"]) == "–"


def test_the_page_is_of_the_pairs_that_were_measured() -> None:
    pairs = PAIRS.read_text(encoding="utf-8")
    written = SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert written and written[0] == f"{written[1]}{performance_table(pairs)}\n{written[2]}"
    assert len(pairs_of(pairs)) == len(re.findall(r"^\| [^-b]", written[0], re.MULTILINE)) >= 8
