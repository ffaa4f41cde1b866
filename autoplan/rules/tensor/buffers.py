"""Buffers that forward changes: each rank has them whole, and writes the same to them."""

from autoplan.ir.graph import READ_BUFFER, UPDATE_BUFFER, TensorType
from autoplan.rules.registry import Rule, letters, rule


@rule(READ_BUFFER)
def read_buffer(buffer: TensorType) -> Rule:
    return Rule(f"{letters(buffer)} -> {letters(buffer)}")


@rule(UPDATE_BUFFER)
def update_buffer(buffer: TensorType, value: TensorType) -> Rule:
    """The value is made whole first: summed up or gathered over the ranks that have parts of it."""
    dims = letters(buffer)
    return Rule(f"{dims}, {dims} -> {dims}", whole=frozenset(dims.split()) - {"[]"})
