"""A mixture whose tokens travel while a shared expert computes, in three calls (``runtime.ops.experts.beside_shared``).

    experts_sent = send_tokens(hidden, index, scores, 4, axes=(self.ep,))
    experts_given = run_experts(experts_sent, (gate, up), down, (), 'mul(silu(gate), up)', False, True)
    experts = return_tokens(experts_given)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoplan.ir.graph import Argument
from autoplan.ir.typed_program import Compute, TokenFlight

SETS_OUT = "tokens set out: what follows runs meanwhile, down to the experts"
GOES_BACK = "tokens are there, results set out: what follows runs meanwhile, down to return_tokens"
TOKENS = 3  # hidden, index and scores come first


def sent_source(compute: Compute, flight: TokenFlight, local: str, source: Callable[[Argument], str], axes: str) -> str:
    """local   the name of the result, after which what is sent and what is given are named
    source  writes an argument; ``axes``: those over which tokens travel
    """
    given = [*map(source, compute.args[:TOKENS]), str(flight.experts), f"axes=({axes},)"]
    capacity = dict(compute.kwargs).get("capacity")
    given += [] if capacity is None else [f"capacity={source(capacity)}"]
    return f"{local}_sent = send_tokens({', '.join(given)})"


def given_source(
    compute: Compute, local: str, source: Callable[[Argument], str], keeps: Mapping[str, str]
) -> str:
    """``keeps``: arguments that say what it keeps, as source."""
    given = [f"{local}_sent", *map(source, compute.args[TOKENS:]), *(f"{key}={said}" for key, said in keeps.items())]
    return f"{local}_given = run_experts({', '.join(given)})"


def returned_source(local: str) -> str:
    return f"{local} = return_tokens({local}_given)"
