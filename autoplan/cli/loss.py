"""The loss that ``--loss`` names."""

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path

from torch.nn import functional as F

from autoplan.errors import InputsError
from autoplan.models.named import import_file

REMEDY = "give a loss of torch.nn.functional, such as cross_entropy or mse_loss, or path/to/file.py:function"


def loss_named(text: str) -> Callable:
    """A loss of ``torch.nn.functional`` by its name, or a function (model_output, *targets) -> scalar of a file.

    InputsError where the text names none.
    """
    path, colon, function = text.rpartition(":")
    if not colon:
        return functional_loss(text)
    if not path.endswith(".py"):
        raise InputsError(f"--loss {text}", "this names no function of a file", REMEDY)
    found = getattr(import_file(Path(path)), function, None)
    if not callable(found):
        kind = "the file has no" if found is None else "it can't be called, the file's"
        raise InputsError(f"--loss {text}", f"{kind} {function!r}", "define it as (model_output, *targets) -> scalar")
    return found


def functional_loss(name: str) -> Callable:
    known = functional_losses()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
        cause = "torch.nn.functional has no such function of an input and a target"
        raise InputsError(f"--loss {name}", cause, f"did you mean {near[0]}? Or {REMEDY}" if near else REMEDY)
    return known[name]


def functional_losses() -> dict[str, Callable]:
    """Those functions that take a target."""
    functions = {n: f for n, f in vars(F).items() if inspect.isfunction(f) and not n.startswith("_")}
    return {name: f for name, f in functions.items() if list(inspect.signature(f).parameters)[1:2] == ["target"]}
