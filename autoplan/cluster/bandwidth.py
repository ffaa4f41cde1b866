"""What if a link were wider: factors on the bandwidths of a cluster's levels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoplan.errors import ClusterError
from cost_models.hardware import Level, Link

NODE, CARDS = "node", "nic"
Factors = tuple[tuple[str, float], ...]


def factors_of(given: Any) -> Factors:
    """What a user gives for ``bandwidth``: one number for the network between nodes, or factors by the links' names."""
    if not isinstance(given, Mapping) and isinstance(given, Sequence) and not isinstance(given, str):
        given = {name: factor for name, factor in given}
    named = given if isinstance(given, Mapping) else {CARDS: given}
    for name, factor in named.items():
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not isinstance(name, str) or not number or not 0 < factor < 1e9:
            value = f"bandwidth = {factor!r}" if name == CARDS else f"bandwidth of {name} = {factor!r}"
            remedy = "Give a positive factor, as in 2.0 or {'node': 1.0, 'nic': 0.5}"
            raise ClusterError(value, "is no factor", remedy)
    return tuple((name, float(factor)) for name, factor in named.items())


def times(first: Factors, second: Factors) -> Factors:
    """Both, one after the other."""
    product = dict(first)
    for name, factor in second:
        product[name] = product.get(name, 1.0) * factor
    return tuple((name, factor) for name, factor in product.items() if factor != 1.0)


def widened(levels: Sequence[Level], node: Link, factors: Factors) -> tuple[Level, ...]:
    """The levels, innermost first, with their links' bandwidths times the factors.

    node     the link inside a node, which may join nodes too
    factors  by "node", for what lies on that link; by "nic", for what lies on the network cards; by the name of one
             outer level, for that one
    """
    outer = [level.name for level in levels[1:]]
    for name, _ in factors:
        if name not in (NODE, CARDS, *outer):
            known = ", ".join(dict.fromkeys((NODE, CARDS, *outer)))
            raise ClusterError(f"bandwidth of {name!r}", "is no link of this cluster", f"Its links are {known}")
    found = []
    for number, level in enumerate(levels):
        factor = dict(factors).get(NODE if level.link == node else CARDS, 1.0)
        if number and level.name not in (NODE, CARDS):
            factor *= dict(factors).get(level.name, 1.0)
        found.append(level if factor == 1.0 else replace(level, link=level.link.scaled(factor)))
    return tuple(found)


def factors_text(factors: Factors) -> str | None:
    """As the option bandwidth= takes it; None of none."""
    return ",".join(f"{name}:{factor!r}" for name, factor in factors) or None


def read_factors(text: str) -> dict[str, float]:
    """The factors of "nic:0.5,node:2"; ClusterError where it is none."""
    found = {}
    for part in text.split(","):
        name, colon, factor = part.partition(":")
        try:
            found[name if colon else CARDS] = float(factor if colon else name)
        except ValueError:
            remedy = "Write a factor, as in bandwidth=2, or bandwidth=nic:0.5,node:2"
            raise ClusterError(f"bandwidth={text}", "is no factor", remedy) from None
    return found
