"""Runs what only an accelerator shows, each part in a process of its own.

    python -m tests.bench.gpu [--device cuda] [--small] [--folder build/gpu] [--write docs/gpu.md] [PART …]

A part that fails or takes too long is told, and the others go on. The document is written only on an accelerator.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.bench.gpu.correctness import last_error
from tests.bench.gpu.document import document
from tests.bench.gpu.parts import LIMIT_S, PARTS
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes at which a CPU takes seconds")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu"), help="profile, plans and traces go there")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("--one", choices=PARTS, help="runs this part in this process")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(arguments)
    found = torch.accelerator.current_accelerator()
    if given.device != "cpu" and (found is None or found.type != given.device):
        print(f"no {given.device} here: the device is {found or 'a CPU'}", file=sys.stderr)
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(given.device, given.small, given.folder)
    if given.one:
        PARTS[given.one](setting).write(result_file(setting, given.one))
        return 0
    return all_parts(setting, given.parts or list(PARTS), given.write)


def all_parts(setting: Setting, names: Sequence[str], write: Path | None) -> int:
    results: list[Result] = []
    failed: dict[str, str] = {}
    for name in names:
        said = apart(setting, name)
        if said:
            failed[name] = said
            print(f"{name} didn't end: {said}", flush=True)
        else:
            results.append(Result.read(result_file(setting, name)))
            print(results[-1].section(), flush=True)
    if write and setting.device != "cpu":
        write.write_text(document(setting.title, results, failed))
    return int(bool(failed) or any(result.wrong for result in results))


def apart(setting: Setting, name: str) -> str:
    """Runs a part in a process of its own; what it said where it failed, else ""."""
    result_file(setting, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.bench.gpu", "--one", name, "--device", setting.device]
    command += ["--folder", str(setting.folder), *["--small"] * setting.small]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT_S:g} s"
    return last_error(done.stderr) if done.returncode else ""


def result_file(setting: Setting, name: str) -> Path:
    return setting.folder / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
