"""docs/appendix/accuracy.md: the printed figures, their sources, and the sections that others write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cost_models.figures import Figures
from cost_models.hardware import PROFILES, device_names
from tests.bench.closed_form.fitting.both_ways import BothWays
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.own_table import columns as own
from tests.bench.closed_form.published import SHIPPED
from tests.bench.closed_form.report import FEW, HEADINGS, MANY, percent, summaries, within_sizes
from tests.bench.closed_form.result import TableResult
from tests.bench.closed_form.tables import NOT_USED

WORST = 3
KEPT = {
    "planned": "Not planned yet: `python -m tests.bench.published_steps --write docs/appendix/accuracy.md` does it.",
    "live": "Not measured yet: `make bench-live` writes this section.",
    "gpu": "Not measured: no GPU was at hand.",
}
"""Sections between <!-- name --> and <!-- /name -->, which are kept as they are; and what stands there at first."""
PLANNED = """## Through `parallelize`

The price that users are told: each row's model by name, its axes, schedule and recomputation pinned, its program ours.
What theirs did otherwise is taken over from a row, as changes of prices (`tests/bench/published_steps/traits.py`):

- attention as its model writes it (`attn_implementation="eager"`, which a user may ask for as well), dropout over its
  scores as a kernel of its own, an attention that computes what its mask leaves out, a loss that reads 16-bit logits;
- parameters that lie flat, so that what is gathered needn't be copied, and gathers of the backward that don't run ahead
  (FSDP1, which MPT ran on);
- parameters that are gathered singly, so that fewer of them stand whole (DeepSpeed's ZeRO-3 of 2021);
- gradients that are added up in 16 bit, or by their products (Megatron-LM since 2022), and summed after the last
  backward;
- sums of inputs' gradients that run under no product (Megatron-LM until 2022);
- messages between stages of which each tensor rank sends a part, and that stages wait for; ours sends them whole from
  each rank where the sequence isn't split too, and receives them ahead;
- in the backward, what runs again: nothing but gathers (Megatron-LM's sequence parallelism), or every second product
  and all that is none (torchtitan);
- copies by engines of their own, which slow no product (torchtitan's async TP);
- collectives that cross the host, as NCCL's did before 2.12.

Rows that ran another kind of program than ours beside that are off by it. "Closed form" is that of
`tests/bench/closed_form/transformer` on the same rows, with all of their recipe's flags. Figures whose source is
`tests.bench.published_steps.fitting` are fitted to planned steps, so that the closed form, which leaves some eager
kernels out, is off by more there. Rows are
counted as odd + even; errors are of the odd ones. A row that doesn't fit is priced as if memory had no end.

Bytes are those of eager mode: a kernel of Transformer Engine keeps what its operators keep. torchtitan's are what the
allocator took; what of that no tensor has is the closed form's.

Why rows are off, the largest first:

- sc21_zero3: DeepSpeed of early 2021 spent the time in Python, which no price has.
- megatron_core: deterministic kernels, slower than any profile knows; a bound from below, as for the closed form. Torch
  then writes to all that it allocates (`torch.utils.deterministic.fill_uninitialized_memory`), and attention's backward
  adds in order: 361 TFLOP/s in place of 575 on an H100 (Dao-AILab/flash-attention, pull request 1893).
- vtrain_multi's worst rows are as far off in the closed form. 3.6B with a microbatch of 64 rows took twice as long as
  with 32. With 2 rows on 4 and 8 tensor ranks it took 1.3 and 1.6 times as long as with 4. The host's launches don't
  explain that: 16 tensor ranks launch as many kernels, and took 210 ms a microbatch where 8 took 277. 39.1B on 512
  devices with 2 tensor ranks, and some with 4, took up to half as long again, now more and now less from one size of
  microbatch to the next: no term of the price changes so.
- mpt_fsdp's worst rows are as far off in the closed form: 30B with 8,192 tokens on eight A100s, with 74 GB of 79 taken
  (others as full are not slow), and three more that took 15 to 20% longer than rows beside them. Throughput falls so
  where an allocator gives back and takes anew (mosaicml/composer, pull request 1998); a peak doesn't tell where.
- mpt_fsdp's recomputed rows on h100-sxm and a100-sxm-80gb are priced up to 9% too long:
  `torch.utils.checkpoint` stops at a layer's last product since torch 2.1, and their parameters are gathered twice, not
  three times. Our eager programs run so, too; the price has all of the layer again.
- megatron_core memory's worst row: what its overlapped tensor collectives keep as buffers isn't published."""
SHOWN = (("matmul", None), ("memory", ("efficiency",)), ("attention", None), ("overhead", None))
"""Sections of a profile that the document lists, and which of their figures (None: all)."""
UNLISTED = ("tiles", "multiprocessors", "compiles")

EXAMPLE = '''\
from cost_models.hardware import Topology, load_device
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.step import step_seconds

device, links = load_device("a100-sxm-80gb")
cluster = Topology(device, links.levels(nodes=4, devices_per_node=8))
model = Transformer(hidden=4096, layers=32, heads=32, sequence=2048, vocabulary=50304)
recipe = Recipe(tensor=4, data=8, micro_batch=4, microbatches=8, zero=1, sequence_parallel=True)
step = step_seconds(model, recipe, cluster)
print(f"{step.seconds:.2f} s, {step.flops_per_s_per_device / 1e12:.0f} TFLOP/s a device")
'''
OWN_TABLE = '''\
label,hidden,layers,heads,seq_len,vocabulary,device,nodes,devices_per_node,tensor,pipeline,micro_batch,global_batch,recompute,measured_s
7B on one node,4096,32,32,2048,50304,a100-sxm-80gb,1,8,8,1,4,64,none,
7B on four,4096,32,32,2048,50304,a100-sxm-80gb,4,8,4,2,2,256,full,
'''


def write_document(
    results: Sequence[TableResult], ways: Sequence[BothWays], folder: Path, path: Path
) -> None:
    """Writes the document; what stands between the markers of ``KEPT`` in the file that is there is kept."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    text = document(results, ways, folder, path.with_suffix(".svg").name, before)
    path.write_text(text, encoding="utf-8")


def document(
    results: Sequence[TableResult], ways: Sequence[BothWays], folder: Path, plot: str, before: str = ""
) -> str:
    """The document's text.

    plot    the name of the plot beside it
    before  the document as it is: its kept sections are taken over
    """
    parts = [
        _head(folder, plot), f"{PLANNED}\n\n{_kept('planned', before)}", _errors(results), _both_ways(ways),
        _sizes(results), _own(),
        f"## Measured for real on this machine\n\n{_kept('live', before)}",
        f"## On a GPU\n\n{_kept('gpu', before)}",
        *_tables(results), _not_used(), _figures(results),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(folder: Path, plot: str) -> str:
    shipped = folder.resolve() == SHIPPED.resolve()
    rows = "the few rows that the repository holds" if shipped else "all rows of the published tables"
    return f"""# Accuracy

What the cost models of `cost_models` predict against what others measured and published, as `make validate` printed it
on {rows}.

Of each table and device the rows are numbered from 0 in the order of the file. Figures are fitted per device over all
of its tables at once, on **even** rows; the errors below are those of the **odd** rows, on which nothing was fitted.
Nothing is fitted to a table, a paper or a row. Outliers stay in. Where no row is fitted, all are reported. An error is
predicted / measured − 1; mean, median and max are of its absolute value, signed is its mean, rank is Spearman's
correlation (from four rows up).

![predicted against measured]({plot})"""


def _errors(results: Sequence[TableResult]) -> str:
    note = f"Where a table has more than {MANY} devices, those of fewer than {FEW} rows are told under “all” alone."
    return f"## Errors of the closed form\n\n{note}\n\n" + _markdown(HEADINGS, summaries(results))


def _both_ways(ways: Sequence[BothWays]) -> str:
    """Whether the odd half was a lucky one."""
    if not ways:
        return ""
    intro = (
        "Each half met by figures fitted on the other half alone: the odd rows, the even "
        "rows, and all rows, each of which had no part in the figures that met it."
    )
    shown = [
        (way.table, way.device, *(percent(errors.mean) if errors else "–" for errors in (way.odd, way.even)),
         percent(way.together.mean) if way.together else "–", str(way.together.count) if way.together else "–")
        for way in ways
    ]  # fmt: skip
    return f"## Both halves in turn\n\n{intro}\n\n" + _markdown(
        ("table", "device", "mean, odd rows", "mean, even rows", "mean, all rows", "rows"), shown
    )


def _sizes(results: Sequence[TableResult]) -> str:
    """Over a whole table the sizes of the models alone order the times well: within one size it is harder."""
    lines = [(result.name, result.series, within_sizes(result)) for result in results if within_sizes(result)]
    if not lines:
        return ""
    intro = "Over a table the models' sizes alone order the times; within a size (all rows, from four up):"
    return f"## Rank correlation within sizes\n\n{intro}\n\n" + _markdown(("table", "device", "rank"), lines)


def _own() -> str:
    help_text = (own.__doc__ or "").split("\n\n", 1)[1].strip()
    return f"""## The closed form on a table of one's own

From Python, in a checkout:

```python
{EXAMPLE}```

A table of steps, measured or not: `python -m tests.bench.closed_form --table my.csv`

```csv
{OWN_TABLE}```

```text
{help_text}
```

A device that isn't known is an error: measure its profile with `python -m cost_models.calibrate`, or write one, and
give its path as `device`."""


def _tables(results: Sequence[TableResult]) -> Iterator[str]:
    """Of each table: what is assumed, which rows were fitted, the worst rows, and what was left out."""
    yield "## The tables, and what is assumed"
    for name in dict.fromkeys(result.name for result in results):
        of = [result for result in results if result.name == name]
        lines = [f"### {name}", f"`{of[0].source}`. {' '.join(of[0].assumption.split())}".rstrip()]
        lines += [_halves(result) for result in of if result.fitted]
        lines.append(_markdown(("worst rows", "device", "predicted", "measured", "error"), _worst(of)))
        lines += [f"Left out, {count} of its rows: {why}." for result in of for count, why in result.left_out]
        yield "\n\n".join(lines)


def _halves(result: TableResult) -> str:
    fitted, reported = (_numbers(half) for half in (result.fitted, result.reported))
    return f"{result.series}: fitted lines {fitted}; reported {reported or 'none'}."


def _numbers(points: Sequence[Point]) -> str:
    """Lines of the file, "1, 3, 5 … 109" where there are many."""
    numbers = sorted({point.row for point in points})
    shown = [str(number) for number in numbers]
    return ", ".join(shown) if len(shown) <= 8 else f"{', '.join(shown[:4])} … {shown[-1]} ({len(shown)} lines)"


def _worst(results: Sequence[TableResult]) -> list[tuple[str, ...]]:
    points = sorted((point for result in results for point in result.points), key=lambda point: -abs(point.error))
    return [
        (point.label, point.series, f"{point.predicted:.4g}", f"{point.measured:.4g}", percent(point.error, True))
        for point in points[:WORST]
    ]


def _not_used() -> str:
    return "## Not used\n\n" + "\n".join(f"- `{file}`: {why}." for file, why in NOT_USED)


def _figures(results: Sequence[TableResult]) -> str:
    """The figures of every device that a table was measured on, with their sources."""
    devices = [name for name in dict.fromkeys(result.series for result in results) if name in device_names()]
    lines = []
    for device in devices:
        tables = Figures.read(PROFILES / f"{device}.toml").tables
        for section, wanted in SHOWN:
            for key, figure in tables.get(section, {}).items():
                if key not in UNLISTED and (wanted is None or key in wanted):
                    unit = "" if figure["unit"] == "1" else f" {figure['unit']}"
                    lines.append((device, f"{section}.{key}", f"{figure['value']}{unit}", figure["source"]))
    return "## Figures of the devices\n\n" + _markdown(("device", "figure", "value", "source"), lines)


def _kept(name: str, before: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", before, re.DOTALL)
    inside = found[1] if found else f"{KEPT[name]}\n"
    return f"<!-- {name} -->\n{inside}<!-- /{name} -->"


def _markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
