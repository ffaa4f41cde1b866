"""The rows that a mask keeps: all of them, and which are kept."""

from dataclasses import dataclass

from autoplan.ir.graph import Ref


@dataclass(frozen=True)
class MaskedRows:
    """The rows that a mask keeps.

    rows   all of them
    mask   which are kept, [n]
    name   of the mask as the model has it: what one mask keeps goes together
    dim    of ``rows``, that the mask stands along
    """

    rows: Ref
    mask: Ref
    name: str
    dim: int = 0
