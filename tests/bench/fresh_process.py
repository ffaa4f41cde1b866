"""What a module measures in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys


def in_fresh_process(module: str, *arguments: str, limit_s: float) -> dict:
    """The dictionary in the last line that it prints; {"error": its last line} where it fails or isn't done."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])
