"""Branches on values that a trace can take without reading them: checks, and whether all numbers are finite.

``if labels.max() >= classes: raise ValueError(...)`` and ``assert`` look at what forward is given and compute
nothing. The trace takes the way that doesn't raise, as it leaves ``torch._check`` out; torch.distributions checks
so all that it is given. ``if not torch.isfinite(x).all(): x = x.clamp(...)`` mends numbers that overflowed. The trace
takes the way of finite numbers: where some aren't, the program goes on with them, and tells of a loss that isn't
finite. ``if torch.rand([]) < self.layerdrop`` drops nothing where that is zero. Each line of the first two kinds is
noted, for the report to tell, and so is ``torch.rand(1) > 0``. What ``torch.ones`` gives is true everywhere: a mask
that forward makes so hides nothing, and nothing has to be computed with it.
"""

import dis
import linecache
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

OURS = Path(__file__).parent
DISTRIBUTIONS = str(Path(torch.distributions.__file__).parent)  # of torch's own code, what checks values
CALLERS = (str(OURS / "batch_binding.py"), str(OURS / "checks" / "observed.py"))  # of forward and of the loss
MEANT = {"isfinite": True, "isnan": False, "isinf": False}  # of finite numbers
FLIPS = ("logical_not", "__invert__", "bitwise_not")
FILLED = ("ones", "ones_like", "new_ones")  # with what is true
ALIKE = (
    "all", "any", "to", "bool", "float", "int", "long", "__and__", "__or__", "logical_and", "logical_or", "cat",
    "__getitem__", "expand", "view", "reshape", "unsqueeze", "squeeze", "clone", "contiguous",
)  # fmt: skip
"""What gives the one truth value that all its operands have everywhere."""
JOINS = ("__and__", "__or__", "logical_and", "logical_or")  # of ``ALIKE``, what a number may stand in beside a tensor
COMPARED = ("lt", "le", "gt", "ge")
BETWEEN = ("CACHE", "TO_BOOL", "UNARY_NOT", "EXTENDED_ARG", "NOP")  # asking for a truth and jumping by it
ENDS = ("JUMP", "RETURN", "FOR_ITER", "SEND", "YIELD")
CHECK, FINITE = "forward's check of values isn't made", "all numbers are taken to be finite"
POSITIVE = "a draw from 0 to 1 is taken to be above 0"  # it is 0 once in 2^24 draws


def true_everywhere(tensor: Tensor) -> bool:
    """Whether all of a tensor is known to be true; ``Branches``, where one is entered, answers."""
    return bool(has_torch_function((tensor,)) and handle_torch_function(true_everywhere, (tensor,), tensor))


class Branches(TorchFunctionMode):
    """Within it, ``bool(tensor)`` is decided where one way only raises, or where it asks for finite numbers.

    noted  gets a line for each place
    """

    def __init__(self, noted: MutableMapping[str, None]) -> None:
        super().__init__()
        self.noted = noted
        self.known: dict[int, tuple[Tensor, bool]] = {}  # the tensor is held, so that its id stays its own
        self.assumed: dict[int, str] = {}  # of those of ``known``, what they follow from
        self.uniform: dict[int, Tensor] = {}  # draws from 0 to below 1
        self.versions: dict[int, int] = {}  # of the tensors of both: what is changed in place since is known no more

    def __torch_function__(
        self, func: Callable, types: Collection[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        self.forget(args)
        if func is true_everywhere:
            return id(args[0]) in self.known and self.known[id(args[0])][1]
        if name in ("__bool__", "item") and isinstance(args[0], Tensor) and args[0].numel() == 1:
            value = self.decided(args[0], asks=name == "__bool__")
            if value is not None:
                return value
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            if name in ("rand", "rand_like"):
                self.uniform[id(result)] = result
                self.versions[id(result)] = version(result)
            compares = name.strip("_") in COMPARED
            truth = self.compared(name, args) if compares else self.truth(name, args, kwargs or {})
            if truth is not None:
                self.known[id(result)] = result, truth
                self.versions[id(result)] = version(result)
                taken = [FINITE] if name in MEANT else [POSITIVE] if compares and at_zero(name, args[1]) else []
                taken += [self.assumed[key] for key in map(id, args) if key in self.assumed]
                self.assumed |= dict.fromkeys([id(result)] if taken else [], taken[0] if taken else "")
        return result

    def forget(self, args: tuple) -> None:
        """What was known of operands that were changed in place."""
        for key in map(id, args):
            tensor = self.uniform.get(key, self.known[key][0] if key in self.known else None)
            if tensor is not None and version(tensor) != self.versions[key]:
                for told in (self.uniform, self.known, self.versions):
                    told.pop(key, None)
                self.assumed.pop(key, None)

    def compared(self, name: str, args: tuple) -> bool | None:
        """A draw against a number that none, or all, are below."""
        if len(args) != 2 or id(args[0]) not in self.uniform or not isinstance(args[1], (int, float)):
            return None
        limit, below = args[1], name.strip("_") in ("lt", "le")
        return (not below if limit <= 0 else below) if limit <= 0 or limit >= 1 else None

    def truth(self, name: str, args: tuple, named: Mapping[str, Any]) -> bool | None:
        """What a function gives everywhere where all numbers are finite."""
        if name in MEANT or name in FILLED:
            return MEANT.get(name, True)
        if name in JOINS and not all(isinstance(arg, Tensor) for arg in (*args, *named.values())):
            return None
        given = args[0] if args and isinstance(args[0], (list, tuple)) else args
        tensors = [arg for arg in (*given, *named.values()) if isinstance(arg, Tensor)]
        known = {self.known[id(t)][1] if id(t) in self.known else None for t in tensors}
        if (name not in ALIKE and name not in FLIPS) or len(known) != 1 or None in known:
            return None
        if name in FLIPS and any(t.dtype != torch.bool for t in tensors):  # of a number, bits are flipped
            return None
        return known.pop() is not (name in FLIPS)

    def decided(self, tensor: Tensor, *, asks: bool) -> bool | None:
        """The truth of what a line asks for; None where only the values tell."""
        line = asking_line()
        if id(tensor) in self.known and (asks or tensor.dtype == torch.bool):
            if id(tensor) in self.assumed:
                self.noted[f"{self.assumed[id(tensor)]}: {line[1] if line else 'forward'}"] = None
            return self.known[id(tensor)][1]
        if not asks or line is None or not hasattr(tensor, "fake_mode"):
            return None
        frame, told = line
        value = unraised(frame.f_code, frame.f_lasti)
        if value is not None:
            self.noted[f"{CHECK}: {told}"] = None
        return value


def at_zero(name: str, limit: float) -> bool:
    """Whether a draw of exactly 0 would compare otherwise than all others."""
    return name.strip("_") in ("le", "gt") and limit == 0


def version(tensor: Tensor) -> int:
    """How often it was changed in place, through views too; 0 where torch doesn't count."""
    return 0 if tensor.is_inference() else tensor._version


def asking_line() -> tuple[FrameType, str] | None:
    """The innermost frame of forward's or the loss' code outside of torch and the trace, or of the distribution that it
    made, and ``file.py:12: if x.max() > 0:``; None where neither runs."""
    frame, asks = sys._getframe(1), None
    while frame is not None and frame.f_code.co_filename not in CALLERS:
        file = frame.f_code.co_filename
        if file != "<string>" and not file.startswith((str(OURS), torch.__path__[0])):
            return asks or frame, f"{file}:{frame.f_lineno}: {linecache.getline(file, frame.f_lineno).strip()}"
        if asks is None and file.startswith(DISTRIBUTIONS):
            asks = frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


def unraised(code: CodeType, at: int) -> bool | None:
    """What a condition that code asks for at an offset has to be, for nothing to be raised at once; None where neither
    way raises, or both do."""
    steps = {one.offset: one for one in dis.get_instructions(code)}
    order = sorted(steps)
    place, flips = order.index(at), False
    while "POP_JUMP" not in (name := steps[order[place]].opname):
        if name not in BETWEEN:
            return None
        flips ^= name == "UNARY_NOT"
        place += 1
    jump = steps[order[place]]
    if not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    ways = {jump.opname.endswith("_IF_TRUE"): jump.argval, jump.opname.endswith("_IF_FALSE"): order[place + 1]}
    raised = {value for value, start in ways.items() if raising(steps, order, start)}
    return (not raised.pop()) is not flips if len(raised) == 1 else None


def raising(steps: Mapping[int, dis.Instruction], order: Sequence[int], start: int) -> bool:
    """Whether code from an offset on raises, whatever happens."""
    for offset in order[order.index(start) :]:
        name = steps[offset].opname
        if name == "RAISE_VARARGS":
            return True
        if any(word in name for word in ENDS):
            return False
    return False
