"""Runs torch.export. Control flow that depends on data is refused by the line of the user's code that has it."""

import linecache
import logging
import re
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.fx._lazy_graph_module import _use_lazy_graph_module  # nowhere public
from torch.nn import functional
from torch.nn.modules import transformer  # nowhere public is the look into masks

from autoplan.errors import AutoplanError, TraceError
from autoplan.ops.ctc import traced_loss
from autoplan.trace.batch_binding import with_targets

LOSS = "loss_fn"
LOGGED = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
STACKS = "do_not_emit_stack_traces"
CAPTURING = threading.RLock()  # what a capture sets, torch has once for all threads
OURS = Path(__file__).parent.parent
LIBRARIES = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib"), str(OURS))


def capture(module: nn.Module, args: Sequence[torch.Tensor], *, lines: bool = False) -> ExportedProgram:
    """The exported program, with linear, attention and norms whole. TraceError names the line.

    lines  whether each node says the line that it comes from (``node_line``), which takes longer
    """
    reading = nullcontext() if lines else unread()
    try:
        with CAPTURING, warnings.catch_warnings(), unlogged(*LOGGED), in_place_of_torch(), reading:
            warnings.simplefilter("ignore")  # what export deprecates inside itself
            with unprinted():
                return torch.export.export(module, tuple(args), strict=False)
    except AutoplanError:
        raise
    except Exception as error:
        raise explain(error) from error


@contextmanager
def unread() -> Iterator[None]:
    """Without what export makes for readers of its graph: the stack that each node comes from, and the graph's Python
    code after each of its passes. They take much of its time, and nothing here reads them. torch 2.11 has no
    setting for stacks, and keeps them."""
    config: Any = fx.config
    before = getattr(config, STACKS, None)
    if before is not None:
        setattr(config, STACKS, True)
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        if before is not None:
            setattr(config, STACKS, before)


@contextmanager
def in_place_of_torch() -> Iterator[None]:
    """Within it functions of torch that can't do without values are those that can: a forward on fake tensors runs."""
    with masks_unread(), patch.object(functional, "ctc_loss", traced_loss):
        yield


@contextmanager
def masks_unread() -> Iterator[None]:
    """nn.TransformerEncoder and its decoder look into a mask that they are given, for whether it is causal. That is a
    hint to attention, which reads the mask all the same; a trace can't look, so nobody does."""
    looking = transformer._detect_is_causal_mask

    def hinted(mask: object, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    transformer._detect_is_causal_mask = hinted
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = looking


def unprinted() -> AbstractContextManager:
    """Without the graph so far, which export prints to stderr before it raises."""
    return patch("torch.export._trace.print", lambda *_, **__: None, create=True)


@contextmanager
def unlogged(*names: str) -> Iterator[None]:
    """Without what loggers say: export logs a traceback of each mistake that it then raises, too."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def explain(error: Exception) -> TraceError:
    """The failure as a mistake that a user can mend."""
    line = user_line(error) or place_of(error)
    text = str(error).strip().splitlines() or [type(error).__name__]
    known = next((told for told in map(of_known_kind, chain(error)) if told), None)
    if known is not None:
        cause, remedy = known
    elif data_dependent(error):
        cause = "forward takes a branch, or makes a shape, that depends on a tensor's values"
        remedy = "write it without reading the values: torch.where for a branch, a fixed size and a mask for a shape"
    else:
        cause = f"{type(error).__name__}: {text[0]}"
        what = "loss_fn takes such targets" if line.startswith(LOSS) else "the model runs on these example_inputs"
        remedy = f"check that {what}; if it does, torch.export can't follow this line"
    return TraceError(line, cause, remedy)


def of_known_kind(error: BaseException) -> tuple[str, str] | None:
    """Cause and remedy where it is known what else to write."""
    if "linalg_lstsq" in str(error):
        return "its rank and residuals follow from values", "write torch.linalg.pinv(a) @ b"
    traceback = error.__traceback__
    while traceback is not None:
        held = traceback.tb_frame
        if held.f_code.co_filename == nn.modules.rnn.__file__ and held.f_locals.get("batch_sizes") is not None:
            remedy = "give the layer the padded rows, and leave what is padded out of the loss, as by labels of -100"
            return "how many rows of a packed sequence reach each place follows from their lengths' values", remedy
        traceback = traceback.tb_next
    return None


def data_dependent(error: BaseException) -> bool:
    marks = ("data-dependent", "data dependent", "DataDependent", ".item()", "_local_scalar_dense")
    return any(mark in f"{type(e).__name__} {e}" for e in chain(error) for mark in marks)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def user_line(error: BaseException) -> str:
    """``file.py:12: if x.sum() > 0:``, the innermost frame outside of torch and the standard library; "" for none."""
    found = [(t.tb_frame.f_code.co_filename, t.tb_lineno) for t in frames(error)]
    user = [(file, line) for file, line in found if not file.startswith(LIBRARIES) and not file.startswith("<")]
    return line_of(*user[-1]) if user else ""


def node_line(program: ExportedProgram, names: Sequence[str]) -> str:
    """The user's line that the first of these nodes comes from that has one, of a program captured with lines; "" for
    none."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    stacks = {node.name: node.meta.get("stack_trace") or "" for graph in reversed(graphs) for node in graph.nodes}
    for name in names:
        met = re.findall(r'File "(.+)", line (\d+)', stacks.get(name, ""))
        user = [(file, int(line)) for file, line in met if not file.startswith((*LIBRARIES, "<"))]
        if user:
            return line_of(*user[-1])
    return ""


def place_of(error: BaseException) -> str:
    """Where no line is the user's: "loss_fn" with its operands, or the innermost module of torch, as it prints."""
    place = "the model"
    for held in (t.tb_frame for t in frames(error)):
        own = held.f_locals
        if held.f_code is with_targets.__code__:
            operands = [value for value in (own["output"], *own["targets"]) if isinstance(value, torch.Tensor)]
            told = " and ".join(f"{str(v.dtype).removeprefix('torch.')} {list(v.shape)}" for v in operands)
            return f"{LOSS} of {told or 'the output'}"
        module = own.get("self") if held.f_code.co_name == "forward" else None
        torchs = isinstance(module, nn.Module) and type(module).__module__.startswith("torch.nn.")
        place = repr(module) if torchs and "\n" not in repr(module) else place
    return place


def line_of(file: str, line: int) -> str:
    return f"{file}:{line}: {linecache.getline(file, line).strip()}"


def frames(error: BaseException) -> Iterator[TracebackType]:
    """Of the error and what it came from, the outermost first in each."""
    for one in chain(error):
        traceback = one.__traceback__
        while traceback is not None:
            yield traceback
            traceback = traceback.tb_next
