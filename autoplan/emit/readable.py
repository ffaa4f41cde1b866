"""Names that local variables have for their reader: what the user's module is called, q, k and v, or what was done to
which of these."""

import re

from autoplan.ir.randomness import ATTENTION
from autoplan.ir.typed_program import Compute, LoweredBlock, Move

HEADS = ("q", "k", "v")
GIVEN = {"cast": "to", "part": "slice", "normalization": "batch_norm"}  # names that the trace gives to operators
DONE = {"transpose": "transposed", "reshape": "reshaped", "cat": "joined", "neg": "negated", "slice": "part"}
SHORT = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def readable_names(block: LoweredBlock) -> dict[str, str]:
    """For each value of a block's body the name that it should have; several may want the same.

    What a module of the user's gave is called as the module is. What attention reads is q, k and v, and the sum that a
    residual stream goes on with is residual. Any other value is called after what it was made of, and how.
    """
    entering = {v.name for v in block.inputs}
    inputs = {v.name: v.name for v in block.inputs}
    heads = {name: head for s in block.body if isinstance(s, Compute) and s.op == ATTENTION
             for name, head in zip(s.reads, HEADS, strict=False)}  # fmt: skip
    roots, names = dict(inputs), dict[str, str]()
    stream = set(entering)  # the inputs, and the sums that they go on in
    for statement in block.body:
        value = statement.value.name
        if isinstance(statement, Move):
            source = names.get(statement.source, statement.source)
            suffix = value.removeprefix(statement.source)
            roots[value] = roots.get(statement.source, source)
            names[value] = f"{source}{suffix}" if suffix != value else value
            if statement.source in stream:
                stream.add(value)
            continue
        read = [name for name in statement.reads if name in roots]
        if value in heads and is_generic(statement):
            names[value] = roots[value] = heads[value]
        elif not is_generic(statement) or not read:
            names[value] = roots[value] = value
        elif done_by(statement) == "add" and len(read) == 2 and any(name in stream for name in read):
            names[value] = roots[value] = "residual"
            stream.add(value)
        else:
            roots[value] = roots[read[0]]
            names[value] = f"{roots[read[0]]}_{word_of(statement, block)}"
    return names


def done_by(compute: Compute) -> str:
    """"aten.mul.Tensor" -> "mul"."""
    return compute.op.split(".")[1] if "." in compute.op else compute.op


def is_generic(compute: Compute) -> bool:
    """Whether a value is called as its operator is: "mul_3", and "cast" of "to"."""
    base = re.sub(r"_\d+$", "", compute.value.name)
    return done_by(compute) in (base, GIVEN.get(base))


def word_of(compute: Compute, block: LoweredBlock) -> str:
    """What an operator did: the dtype of a cast, "scaled" where it multiplies by a parameter."""
    done = done_by(compute)
    if done == "to":
        return SHORT.get(compute.value.type.dtype, compute.value.type.dtype)
    if done == "mul" and {p.name for p in block.parameters} & set(compute.reads):
        return "scaled"
    return DONE.get(done, done)
