"""Parts of tensors and tensors put together, along one dim that stays whole; every other dim is free."""

from autoplan.ir.graph import Argument, TensorType
from autoplan.rules.registry import Rule, letters, rule

PASSES = ((0,),)


def along(x: TensorType, dims: tuple[int, ...], **said: object) -> Rule:
    """A rule in which some dims are whole and may change their size, and the others are free."""
    before = [f"w{i}" if i in dims else f"d{i}" for i in range(len(x.shape))]
    after = [f"v{i}" if i in dims else f"d{i}" for i in range(len(x.shape))]
    whole = frozenset(f"{letter}{i}" for i in dims for letter in "wv")
    spec = f"{' '.join(before) or '[]'} -> {' '.join(after) or '[]'}"
    return Rule(spec, whole=whole, **said)  # type: ignore[arg-type]


@rule("aten.slice.Tensor")
def part(x: TensorType, dim: int, start: int, stop: int, step: int = 1) -> Rule:
    return along(x, (dim,), linear=PASSES, cost="free")


@rule("aten.select.int")
def select(x: TensorType, dim: int, index: int) -> Rule:
    kept = " ".join(f"d{i}" for i in range(len(x.shape)) if i != dim) or "[]"
    return Rule(f"{letters(x)} -> {kept}", whole=f"d{dim}", linear=PASSES, cost="free")


@rule("aten.cat.default")
def cat(tensors: tuple[TensorType, ...], dim: int = 0) -> Rule:
    """Partial together or not at all."""
    rank = len(tensors[0].shape)
    terms = [" ".join(f"w{i}" if d == dim else f"d{d}" for d in range(rank)) for i in (*range(len(tensors)), "out")]
    return Rule(
        f"{', '.join(terms[:-1])} -> {terms[-1]}",
        whole=frozenset(f"w{i}" for i in (*range(len(tensors)), "out")),
        linear=(tuple(range(len(tensors))),),
    )


@rule("aten.stack.default")
def stack(tensors: tuple[TensorType, ...], dim: int = 0) -> Rule:
    """A new dim, which is whole."""
    terms = [f"d{i}" for i in range(len(tensors[0].shape))]
    operand = letters(tensors[0])
    return Rule(
        f"{', '.join(operand for _ in tensors)} -> {' '.join([*terms[:dim], 'n', *terms[dim:]])}",
        whole="n",
        linear=(tuple(range(len(tensors))),),
    )


@rule("aten.constant_pad_nd.default")
def constant_pad(x: TensorType, pads: tuple[int, ...], value: float = 0.0) -> Rule:
    """pads: (before, after) of the last dim, then of the one before it, and so on."""
    last = len(x.shape) - 1
    padded = tuple(last - i // 2 for i in range(0, len(pads), 2) if pads[i] or pads[i + 1])
    return along(x, padded, linear=PASSES if value == 0 else ())


@rule("aten.pad.default")
def pad(x: TensorType, pads: tuple[int, ...], mode: str = "constant", value: float | None = None) -> Rule:
    """Padding by what is there already: "reflect", "replicate" (their backward asks for the operand), "circular"."""
    again = constant_pad(x, pads)
    return Rule(again.spec, whole=again.whole, linear=again.linear, saved=() if mode == "circular" else (0,))


@rule("aten.diff.default")
def diff(
    x: TensorType, n: int = 1, dim: int = -1, prepend: TensorType | None = None, append: TensorType | None = None
) -> Rule:
    """Differences along one dim; what is put before or after it counts as a part of it."""
    dim %= len(x.shape)
    tensors = [t for t in (x, prepend, append) if t is not None]
    joined = cat(tuple(tensors), dim)
    return Rule(joined.spec, whole=joined.whole, linear=joined.linear)


@rule("aten.flip.default")
def flip(x: TensorType, dims: tuple[int, ...]) -> Rule:
    return along(x, tuple(d % len(x.shape) for d in dims), linear=PASSES)


@rule("aten.roll.default")
def roll(x: TensorType, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Rule:
    """Without dims the flattened tensor rolls, so that all of them are whole."""
    return along(x, tuple(d % len(x.shape) for d in dims) or tuple(range(len(x.shape))), linear=PASSES)


@rule("aten.tril.default", "aten.triu.default")
def triangle(x: TensorType, diagonal: Argument = 0) -> Rule:
    rank = len(x.shape)
    return along(x, (rank - 2, rank - 1), linear=PASSES)


@rule("aten.repeat.default")
def repeat(x: TensorType, repeats: tuple[int, ...]) -> Rule:
    """A dim that is repeated is whole; new leading dims too."""
    new = len(repeats) - len(x.shape)
    before = [f"w{i}" if repeats[new + i] > 1 else f"d{i}" for i in range(len(x.shape))]
    after = [f"n{i}" for i in range(new)] + [f"v{i}" if repeats[new + i] > 1 else f"d{i}" for i in range(len(x.shape))]
    whole = frozenset(f for f in (*before, *after) if f[0] in "wvn")
    return Rule(f"{' '.join(before) or '[]'} -> {' '.join(after) or '[]'}", whole=whole, linear=PASSES)
