"""An exported plan's folder: read as ``autoplan.load(folder).program()`` reads it, its code included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoplan.export.folder import opened, program_spec, write_folder
from autoplan.ir.checksums import bytes_hash
from tests.corruptions.target import Target
from tests.support.hand_made import llama
from tests.support.records import record_of


class PlanReader:
    """What a plan's reader has in memory: the plan, the code that ran, and what came with the model."""

    def __init__(self) -> None:
        self.known: object = None

    def disturb(self) -> None:
        self.known = "another plan"

    def load(self, folder: Path) -> None:
        plan = opened(folder)
        record, module = plan.record, plan.module()
        names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        code = [stage.__init__.__code__.co_code for stage in module.STAGES if isinstance(stage, type)]
        came = {p.name: bytes_hash(p.read_bytes()) for p in sorted((folder / "pretrained").iterdir()) if p.is_file()}
        own = {"config.json", "tokenizer.json"}
        self.known = record, program_spec(record), sorted(names), code, {name: came.get(name) for name in own}

    def memory(self) -> object:
        return self.known


class PlanTarget(Target):
    """See ``Target``."""

    def make(self, folder: Path) -> None:
        record = record_of(llama(), "1x4 cpu", dp=2, tp=2, pp=1)
        extra = {"report.html": "<html></html>", "pretrained/config.json": "{}", "pretrained/tokenizer.json": "[]"}
        write_folder(record, folder, "dp=2 tp=2", extra)

    @contextmanager
    def reader(self) -> Iterator[PlanReader]:
        yield PlanReader()


TARGET = PlanTarget("plan")
