"""What a rehearsal measured, where the folder has one: its verdict, and each class of ranks against its prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from autoplan.report.html.chart import figure, table, text
from autoplan.report.words import GIB, seconds_text, size_in


def rehearsal_section(found: Mapping[str, Any]) -> str:
    """The data of rehearsal.json, of which any part may be absent."""
    verdict = "would run as planned" if found.get("passed") else "would NOT run as planned"
    whole = f"{found.get('run')} of {found.get('microbatches')} microbatches were run"
    said = f"The program {verdict}: {found.get('devices')} ranks, {whole}."
    classes: Sequence[Mapping[str, Any]] = found.get("classes") or ()
    rows = [
        [str(one.get("reason", "")), str(one.get("ranks", "")), size_in(GIB, float(one.get("peak_bytes", 0))),
         size_in(GIB, float(one.get("predicted_bytes", 0)))]
        for one in classes
    ]  # fmt: skip
    told = table(["class of ranks", "ranks", "peak, GiB", "predicted, GiB"], rows, right=(1, 2, 3)) if rows else ""
    lines = [*(f"{text(reason)}" for reason in found.get("mismatches") or ()), str(found.get("deadlock") or "")]
    faults = "".join(f"<li>{text(line)}</li>" for line in lines if line)
    simulated = found.get("simulated_s")
    by = f"<p>By the order of all ranks' calls a step takes {text(seconds_text(simulated))}.</p>" if simulated else ""
    faults = f"<ul>{faults}</ul>" if faults else ""
    return figure("Rehearsal", f"<p>{text(said)}</p>{by}{told}{faults}", name="rehearsal")
