"""What was asked about an exported plan later: rehearsal.json and scaling.json, and the report that shows them.

They are none of the plan's files: each answer replaces the one before.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplan.export.folder import content_of, plan_data, plan_file, write_plan_data
from autoplan.export.owned_files import REPORT
from autoplan.ir.checksums import bytes_hash

REHEARSAL, SCALING = "rehearsal.json", "scaling.json"
FILES = {"rehearsal": REHEARSAL, "scaling": SCALING}
Found = dict[str, Mapping[str, Any]]  # answers by their names, as in FILES


def found_in(folder: Path, headline: str) -> Found:
    """The answers that stand in a folder, as far as they are of the plan of this headline."""
    return {name: data for name, file in FILES.items() if (data := read_found(folder / file, headline)) is not None}


def read_found(file: Path, headline: str) -> dict | None:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("plan") == headline else None


def write_found(folder: Path, found: Found) -> None:
    """Writes each answer to its file."""
    for name, data in found.items():
        (folder / FILES[name]).write_text(json.dumps(data, indent=1) + "\n")


def put_report(folder: Path, page: str) -> bool:
    """Replaces the folder's report.html and its checksum in plan.json. False, and nothing is done, where it was edited
    or removed since it was exported."""
    plan, report = plan_file(folder), folder / REPORT
    data = plan_data(content_of(plan), str(plan))
    if not report.is_file() or data["files"].get(REPORT) != bytes_hash(report.read_bytes()):
        return False
    report.write_text(page)
    write_plan_data(plan, {**data, "files": {**data["files"], REPORT: bytes_hash(page.encode())}})
    return True
