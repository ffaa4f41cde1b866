"""``autoplan checkpoint verify FOLDER``: whether what was saved is as it was written."""

import argparse
from pathlib import Path

from autoplan.errors import WeightsError
from autoplan.runtime.checkpoint.index import REMEDY, read_index
from autoplan.runtime.checkpoint.state_json import complete, numbered
from autoplan.runtime.checkpoint.store import check_chunks


def verify_checkpoint_command(options: argparse.Namespace) -> None:
    """A line for each whole checkpoint; then WeightsError that names the damaged file, where there is one."""
    damaged = []
    for path in checkpoints_in(Path(options.folder)):
        try:
            print(verified_line(path), flush=True)
        except WeightsError as error:
            damaged.append(error)
        except OSError as error:
            damaged.append(WeightsError(path, f"it is damaged: it can't be read ({error})", REMEDY))
    if damaged:
        more = f"; {len(damaged) - 1} more: {', '.join(error.value for error in damaged[1:])}" if damaged[1:] else ""
        raise WeightsError(damaged[0].value, damaged[0].cause + more, damaged[0].remedy)


def checkpoints_in(folder: Path) -> list[Path]:
    """The folder itself, or the finished and the damaged checkpoints of steps in it."""
    steps = [path for _, path in numbered(folder) if path.suffix == ""] if folder.is_dir() else []
    own = {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
    return [folder] if not steps or "state.json" in own else steps


def verified_line(folder: Path) -> str:
    """"…/step-3: whole: step 3, 29 tensors, 1,234 bytes in 5 files". WeightsError where it isn't."""
    source, state = complete(folder)
    index = read_index(source, state.tensors, state.files)
    check_chunks(source, index)
    size = sum(state.files.values())
    return f"{source}: whole: step {state.step}, {len(index)} tensors, {size:,} bytes in {len(state.files)} files"
