"""Small pieces of Python source: identifiers, literals, the comments that say how a tensor lies."""

import keyword
import math
import re
from collections.abc import Callable, Sequence

from autoplan.emit.size_names import Size
from autoplan.ir.graph import Argument, DType, Ref, Segment
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective, TypedValue

COMMENT_COLUMN = 72


def identifier(text: str) -> str:
    """A Python identifier that reads like the text: "c_attn.weight[:, 0:768]" -> "c_attn_weight_0_768"."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def attribute_names(names: tuple[str, ...]) -> dict[str, str]:
    """Short distinct attribute names for dotted names: the last two components, more where these aren't unique."""
    parts = {name: re.split(r"\.(?![^\[]*\])", name) for name in names}
    for depth in range(2, max([2, *(len(p) for p in parts.values())]) + 1):
        short = {name: identifier("_".join(p[-depth:])) for name, p in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: f"{identifier(name)}_{i}" for i, name in enumerate(names)}


def snake_case(name: str) -> str:
    """"LlamaDecoderLayer" -> "llama_decoder_layer"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def literal(argument: Argument, name_of: Callable[[str], str], size_of: Callable[[Size], str] = repr) -> str:
    """An argument as Python source."""
    if isinstance(argument, Ref):
        return name_of(argument.name)
    if isinstance(argument, DType):
        return f"torch.{argument.name}"
    if isinstance(argument, Size):
        return size_of(argument)
    if isinstance(argument, tuple):
        items = [literal(item, name_of, size_of) for item in argument]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(argument, float) and not math.isfinite(argument):
        return f'float("{argument}")'
    return repr(argument)


def live_axes(mesh: Mesh) -> frozenset[str]:
    """The axes that comments speak of: device axes of more than one member."""
    return frozenset(axis.name for axis in mesh.device_axes if axis.size > 1)


def placement(layout: Layout, live: frozenset[str]) -> str:
    """A layout by the axes on which it isn't Replicate: "dp: Shard(0), tp: Invariant"."""
    states = layout.states().items()
    return ", ".join(f"{axis}: {state.placement}" for axis, state in states if axis in live and state.kind != "R")


def shape_comment(value: TypedValue, live: frozenset[str]) -> str:
    """``[1, 8192, 1024]   tp: Shard(2)``: what one rank holds."""
    return f"{shape_text(value.local_shape)}   {placement(value.layout, live)}".rstrip()


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def path_text(segments: Sequence[Segment], block: int) -> str:
    """Where a block stands: ``model.layers.0 … 79 (80 of them)``; "" for the root."""
    paths = [segment.path for segment in segments if segment.block == block]
    first = paths[0] or "the root" if len(paths) > 1 else paths[0]
    return first if len(paths) == 1 else f"{first} … {paths[-1].rsplit('.', 1)[-1]} ({len(paths)} of them)"


def collective_comment(collective: Collective, there_alone: bool = False) -> str:
    """What crosses the links: ``forward: all-reduce 128 MiB, backward: all-gather 16 MiB``.

    there_alone  the forward's; another line has the backward's
    """
    sides = [
        f"{side}: {kind} {size_text(size)}"
        for side, kind, size in (
            ("forward", collective.forward, collective.forward_bytes),
            ("backward", collective.backward, collective.backward_bytes),
        )
        if kind and not (there_alone and side == "backward")
    ]
    return ", ".join(sides)


def size_text(size: float) -> str:
    """Bytes as people read them: "128 MiB", "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def commented(code: str, comment: str, indent: int) -> str:
    """A line of code with its comment in a column of its own."""
    line = " " * indent + code
    return f"{line.ljust(COMMENT_COLUMN)}  # {comment}" if comment else line
