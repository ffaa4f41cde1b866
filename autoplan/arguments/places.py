"""Where a file is to be written."""

import os
from pathlib import Path

from autoplan.errors import InputsError


def place_for(file: str | os.PathLike) -> Path:
    """The path of a file that is to be written; its folder is made where there is none.

    InputsError, before anything is computed, where it can't be written there.
    """
    path, own = Path(file), "give a file in a place of your own"
    if path.is_dir():
        raise InputsError(file, "it is a folder", "give a file's path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputsError(file, f"the folder {path.parent} can't be made: {error.strerror or error}", own) from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputsError(file, "nothing can be written there", own)
    return path
