"""Batches to try a program on: a text's bytes for a language model, random values of the right kind for any other.

Batch ``step`` is a function of the seed, the step and its rows alone, the same on every rank and after a restart.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from autoplan.errors import InputsError
from autoplan.ir.graph import Model, Ref, TensorType, walk_refs
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock, Move
from autoplan.runtime.program_spec import ProgramSpec

BYTES = 256
LOOKUPS = ("aten.embedding.default", "autoplan.embedding_bag", "autoplan.ragged_bag")
GROUPED = "autoplan.lookups"  # of several tables, the first of whose arguments are their rows
LOSSES = ("autoplan.cross_entropy", "autoplan.weighted_cross_entropy")
TEXT_SUFFIXES = (".txt", ".md")


@dataclass(frozen=True)
class Use:
    """How a program uses an input of whole numbers.

    classes  how many there may be: rows of the table that it looks up, or classes of the loss that it is a target of
    target   whether it is a loss' target
    shifted  whether the model moves it by itself against the tokens that it is compared with
    """

    classes: int
    target: bool
    shifted: bool


def batch_source(
    spec: ProgramSpec, text: Path | None, seed: int, planned: Model | None = None
) -> Callable[[int], dict[str, Tensor]]:
    """A function from the step to the whole batch, by input name.

    text     a file, or a directory of .txt and .md files, whose bytes are the tokens; None: random values
    planned  the model with the batch that is given; None: the program's own
    InputsError where the model doesn't read tokens, or the text is shorter than a sequence.
    """
    kinds = {value.name: value.type for value in (planned or spec.lowered).batch}
    if text is None:
        return lambda step: random_batch(spec, kinds, generator(seed, step))
    found = read_text(text)
    tokens = token_input(spec)
    length = kinds[tokens].shape[1]
    if len(found) <= length:
        raise InputsError(text, f"{len(found)} bytes of text, a sequence has {length}", "give a longer text")
    return lambda step: text_batch(spec, kinds, tokens, found, generator(seed, step))


def generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def read_text(path: Path) -> Tensor:
    """The bytes of a file, or of a directory's texts one after another, [bytes]."""
    if not path.exists():
        raise InputsError(path, "there is no such file or directory", "give a text file, or a directory of them")
    texts = (p for p in sorted(path.rglob("*")) if p.suffix in TEXT_SUFFIXES)
    files = [path] if path.is_file() else list(texts)
    try:
        content = b"".join(file.read_bytes() for file in files)
    except OSError as error:
        raise InputsError(error.filename or path, error.strerror or str(error), "give a text file of yours") from None
    if not content:
        named = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES)
        cause = "the file is empty" if path.is_file() else f"there is no text in it: {named}"
        raise InputsError(path, cause, "give a text file, or a directory of them")
    if (place := content.find(0)) >= 0:
        cause = f"byte {place} is 0, so it is no text but numbers or an archive, whose bytes are no tokens"
        raise InputsError(path, cause, "give the text, or edit train.py to read this data")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def token_input(spec: ProgramSpec) -> str:
    """The input of token ids [rows, sequence], wide enough for bytes."""
    for value in spec.lowered.batch:
        use = use_of(spec.lowered, value.name)
        if use and not use.target and len(value.type.shape) == 2 and use.classes >= BYTES:
            return value.name
    raise InputsError(
        f"the inputs {[v.name for v in spec.lowered.batch]}",
        f"none is looked up in a table of at least {BYTES} rows, so none can be the bytes of a text",
        "leave --data out, or edit train.py to read this model's own data",
    )


def text_batch(
    spec: ProgramSpec, kinds: Mapping[str, TensorType], tokens: str, text: Tensor, random: torch.Generator
) -> dict[str, Tensor]:
    """Rows at random places of the text; the next byte is each position's label."""
    rows, length = kinds[tokens].shape
    starts = torch.randint(0, len(text) - length, (rows,), generator=random)
    window = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    batch = random_batch(spec, kinds, random)
    for name, kind in kinds.items():
        use = use_of(spec.lowered, name)
        if name == tokens:
            batch[name] = window[:, :-1].contiguous()
        elif use and use.target and kind.shape == (rows, length):
            batch[name] = (window[:, :-1] if use.shifted else window[:, 1:]).contiguous()
    return batch


def random_batch(spec: ProgramSpec, kinds: Mapping[str, TensorType], random: torch.Generator) -> dict[str, Tensor]:
    """Normal values for floats, random classes for what is looked up or a target, ones for masks."""
    return {name: random_input(kind, use_of(spec.lowered, name), random) for name, kind in kinds.items()}


def random_input(kind: TensorType, use: Use | None, random: torch.Generator) -> Tensor:
    if kind.floating:
        return torch.randn(kind.shape, generator=random)
    if use is None:
        return torch.ones(kind.shape, dtype=getattr(torch, kind.dtype))
    return torch.randint(0, use.classes, kind.shape, generator=random, dtype=getattr(torch, kind.dtype))


def elements_per_step(spec: ProgramSpec) -> tuple[int, str]:
    """What a step's throughput is counted in: tokens where the first input is token ids, else rows."""
    kind = spec.lowered.batch[0].type
    return (kind.elements, "tokens") if not kind.floating and len(kind.shape) > 1 else (kind.shape[0], "rows")


def use_of(lowered: Lowered, name: str) -> Use | None:
    """How the program uses an input; None where it neither looks it up nor compares with it."""
    used = list(readers(lowered, name))
    found = [(c, types) for c, types, operand in used if c.op in (*LOOKUPS, *LOSSES) and operand == 1]
    if rows := [size for c, _, operand in used if c.op == GROUPED for size in rows_of(c, operand)]:
        return Use(min(rows), False, False)
    if not found:
        return None
    classes = [types[first_operand(c)].shape[0 if c.op in LOOKUPS else -1] for c, types in found]
    slices = (c for c, _, _ in readers(lowered, name) if c.op == "aten.slice.Tensor")
    shifted = any(isinstance(c.args[2], int) and c.args[2] > 0 for c in slices)
    return Use(min(classes), any(c.op in LOSSES for c, _ in found), shifted)


def rows_of(compute: Compute, operand: int) -> tuple[int, ...]:
    """Rows of the table, of several that are looked up at once, that an operand holds indices of; none for another."""
    _, indices, _, tables, _ = compute.args
    assert isinstance(indices, tuple) and isinstance(tables, tuple)
    return (tables[operand - 1][0],) if 1 <= operand <= len(indices) else ()


def first_operand(compute: Compute) -> str:
    return next(ref.name for ref in walk_refs(compute.args))


def readers(lowered: Lowered, name: str) -> Iterator[tuple[Compute, dict[str, TensorType], int]]:
    """Every operator that reads an input, or whole numbers made from it: with the types around it, and as which
    operand."""
    outer = {v.name: v.type for v in (*lowered.batch, *lowered.buffers, *(c.value for c in lowered.constants))}
    made = {name}
    yield from follow(lowered.constants, outer, made)
    for segment in lowered.segments:
        block = lowered.blocks[segment.block]
        inside = {v.name for v, given in zip(block.externals, segment.externals, strict=True) if given in made}
        yield from follow(block.body, types_in(block), inside)


def follow(
    body: tuple[Compute | Move, ...], types: dict[str, TensorType], made: set[str]
) -> Iterator[tuple[Compute, dict[str, TensorType], int]]:
    """The readers among some statements; ``made`` grows by the whole numbers that they make from what it holds."""
    for statement in body:
        sources = (Ref(statement.source),) if isinstance(statement, Move) else tuple(walk_refs(statement.args))
        read = [operand for operand, ref in enumerate(sources) if ref.name in made]
        if isinstance(statement, Compute):
            for operand in read:
                yield statement, types, operand
        if read and not statement.value.type.floating:
            made.add(statement.value.name)


def types_in(block: LoweredBlock) -> dict[str, TensorType]:
    entering = (*block.inputs, *block.externals, *block.parameters, *block.buffers)
    return {v.name: v.type for v in (*entering, *(s.value for s in block.body))}
