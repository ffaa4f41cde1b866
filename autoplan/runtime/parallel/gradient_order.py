"""In which order a backward completes the parameters' gradients.

A gradient is complete once the backward is past the first statement that reads the parameter. A module's parameters
aren't registered in that order: a decoder layer has its first norm behind its feed-forward layers. A bucket with that
norm's gradient would begin its sum with the layer's last operator, and so would all buckets after it. So
DistributedDataParallel makes its buckets anew after a first backward; here the program says it beforehand.
"""

from collections.abc import Mapping

from autoplan.ir.typed_program import Lowered, LoweredBlock

Place = tuple[int, int, int]
"""Of a parameter the segment that is the first to read it, the statement there, and its own number."""


def read_first(lowered: Lowered) -> Mapping[str, Place]:
    """For each parameter where the chain first reads it: those that come later here are complete earlier."""
    statements = [first_readers(block) for block in lowered.blocks]
    numbers = {parameter.name: number for number, parameter in enumerate(lowered.parameters)}
    found: dict[str, Place] = {}
    for place, segment in enumerate(lowered.segments):
        block = lowered.blocks[segment.block]
        for name, value in zip(segment.parameters, block.parameters, strict=True):
            found.setdefault(name, (place, statements[segment.block].get(value.name, 0), numbers[name]))
    return found


def first_readers(block: LoweredBlock) -> Mapping[str, int]:
    """The number of the first statement that reads each value."""
    found: dict[str, int] = {}
    for number, statement in enumerate(block.body):
        for name in statement.reads:
            found.setdefault(name, number)
    return found
