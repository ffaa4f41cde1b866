"""Runs what only an accelerator shows, each part in a process of its own.

    python -m tests.bench.gpu [--device cuda] [--small] [--folder build/gpu] [--prepare] [--write docs/gpu.md] [PART …]

A part that fails or takes too long is told, and the others go on. The document is of an accelerator; on a machine
without one it can be written of what was measured in the folder. Where the device is dear, ``--prepare`` on another
machine makes the plans before; ``predicted`` runs on one after, and ``--refit``, when the form of a price has changed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.bench.gpu import calibrated
from tests.bench.gpu.attempt import last_error
from tests.bench.gpu.document import document
from tests.bench.gpu.parts import LIMIT_S, PARTS
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes at which a CPU takes seconds")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu"), help="profile, plans and traces go there")
    parser.add_argument("--prepare", action="store_true", help="only makes the parts' plans: no device is needed")
    parser.add_argument("--refit", action="store_true", help="fits the profile anew from what calibrated measured")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("--one", choices=PARTS, help="runs this part in this process")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(arguments)
    names = [given.one] if given.one else given.parts or list(PARTS)
    needed = not given.prepare and not given.refit and any(PARTS[name].device for name in names if name in PARTS)
    found = torch.accelerator.current_accelerator(check_available=True)
    if needed and given.device != "cpu" and (found is None or found.type != given.device):
        print(f"no {given.device} here: the device is {found or 'a CPU'}", file=sys.stderr)
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(given.device, given.small, given.folder)
    if given.refit:
        calibrated.refit(setting).write(result_file(setting, "calibrated"))
        return 0
    if given.prepare:
        for name in names:
            if (prepare := PARTS[name].prepare) is not None:
                prepare(setting)
        return 0
    if given.one:
        PARTS[given.one].run(setting).write(result_file(setting, given.one))
        if PARTS[given.one].device:
            setting.note_device()
        return 0
    return all_parts(setting, names, given.write)


def all_parts(setting: Setting, names: Sequence[str], write: Path | None) -> int:
    failed: dict[str, str] = {}
    wrong = False
    for name in names:
        said = apart(setting, name)
        if said:
            failed[name] = said
            print(f"{name} didn't end: {said}", flush=True)
        else:
            result = Result.read(result_file(setting, name))
            wrong |= bool(result.wrong)
            print(result.section(), flush=True)
    if write and setting.device != "cpu":
        files = (result_file(setting, name) for name in PARTS)  # those of an earlier run on the device, too
        results = [Result.read(each) for each in files if each.exists()]
        write.write_text(document(setting.measured_on(), results, failed))
    return int(bool(failed) or wrong)


def apart(setting: Setting, name: str) -> str:
    """Runs a part in a process of its own, its stderr to a file beside; what it said where it failed, else ""."""
    result_file(setting, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.bench.gpu", "--one", name, "--device", setting.device]
    command += ["--folder", str(setting.folder), *["--small"] * setting.small]
    log = result_file(setting, name).with_suffix(".log")
    with log.open("w") as stderr:
        try:
            done = subprocess.run(command, stderr=stderr, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"it took more than {LIMIT_S:g} s"
    return last_error(log.read_text()) if done.returncode else ""


def result_file(setting: Setting, name: str) -> Path:
    return setting.folder / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
