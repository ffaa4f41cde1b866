"""What is said to the user on stderr: an error, also as the cause with which torchrun ends; a note."""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from autoplan.errors import AutoplanError, LaunchError

PATIENCE_S = 60.0    # for torchrun to end the ranks that leave the telling to another
HEAD_START_S = 1.0   # of a machine's first rank: what it tells, too, the others need not
LOOK_S = 0.02


def tell(error: AutoplanError, before: str = "") -> None:
    """One line on stderr, and the same in the file that torchrun reads where a process fails."""
    said = f"{before}autoplan: error: {error}"
    print(said, file=sys.stderr, flush=True)
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        # without a py_callstack torchrun shows the message alone (torch.distributed.elastic.multiprocessing.errors)
        content = {"message": {"message": said, "extraInfo": {"timestamp": int(time.time())}}}
        Path(file).write_text(json.dumps(content))


def note(text: str) -> None:
    """One line on stderr that asks for nothing; the first rank alone calls it."""
    print(f"autoplan: note: {text}", file=sys.stderr, flush=True)


def tell_once(error: AutoplanError) -> None:
    """Tells an error unless another rank does; then waits for torchrun, which ends all as soon as one has failed.

    How a script was started every process finds wrong, and the first one tells it. Of any other error each text is
    told by one rank of a machine: its first one where that meets it, too.
    """
    rank = os.environ.get("RANK", "0")
    shared = shared_folder()
    if shared is None or isinstance(error, LaunchError):
        mine = rank == "0" or not isinstance(error, LaunchError)
    else:
        mine = is_first(shared / f"told-{hashlib.sha256(str(error).encode()).hexdigest()[:16]}")
    if mine:
        tell(error, before="" if rank == "0" else f"[rank {rank}] ")
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(PATIENCE_S)


def shared_folder() -> Path | None:
    """The folder that torchrun has for the ranks of this machine in this attempt; None without torchrun."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")  # …/attempt_0/3/error.json
    folder = Path(file).parent.parent if file else None
    return folder if folder is not None and folder.is_dir() else None


def wait_for_words() -> None:
    """Before a rank ends whose connection another has closed: torchrun ends all as soon as one has failed, also the one
    that is about to tell why."""
    if shared_folder() is not None:
        time.sleep(2 * HEAD_START_S)


def is_first(mark: Path) -> bool:
    """Whether no other rank of this machine has set the mark; it is set by now."""
    deadline = time.monotonic() + (0.0 if os.environ.get("LOCAL_RANK", "0") == "0" else HEAD_START_S)
    while time.monotonic() < deadline and not mark.exists():
        time.sleep(LOOK_S)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True  # twice rather than never
    return True
