"""What is said to the user on stderr: an error, also as the cause with which torchrun ends; a note."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from autoplan.errors import AutoplanError


def tell(error: AutoplanError, before: str = "") -> None:
    """One line on stderr, and the same in the file that torchrun reads where a process fails."""
    said = f"{before}{type(error).__name__}: {error}"
    print(said, file=sys.stderr, flush=True)
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        # without a py_callstack torchrun shows the message alone (torch.distributed.elastic.multiprocessing.errors)
        content = {"message": {"message": said, "extraInfo": {"timestamp": int(time.time())}}}
        Path(file).write_text(json.dumps(content))


def note(text: str) -> None:
    """One line on stderr that asks for nothing; the first rank alone calls it."""
    print(f"autoplan: note: {text}", file=sys.stderr, flush=True)
