"""What a profile and a fabric may hold. A key that nobody reads is a misspelling, and an error: much is optional, and
what is misspelt would be left out without a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import ProfileError, nearest
from cost_models.figures import Figures

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send")
"""What a link may have figures of its own for."""
DTYPES = ("float64", "float32", "bfloat16", "float16", "float8", "float8-rowwise")
"""What a peak may be of, and a share."""


@dataclass(frozen=True)
class Table:
    """A table of a profile.

    figures  the figures and names that it may hold
    tables   the tables that it may hold, by name
    named    what each holds of the tables or figures whose names are free, as those of protocols; None: none are
    """

    figures: tuple[str, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    named: Table | None = None

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.figures, *self.tables)


_WAYS = {
    "group_bandwidth": Table(named=Table()),
    "protocols": Table(named=Table(("latency", "share"))),
    "tree": Table(("latency",)),
    "switch": Table(("startup", "bandwidth", "members")),
}
_LINK = ("latency", "bandwidth", "startup", "turn", "burst")
LINK = Table(_LINK, {**_WAYS, **{kind: Table(_LINK, _WAYS) for kind in KINDS}})
FABRIC = Table(tables={"link": LINK})
PROFILE = Table(
    tables={
        "peak": Table(DTYPES),
        "shares": Table(DTYPES),
        "memory": Table(("capacity", "reserved", "bandwidth", "efficiency", "update")),
        "cache": Table(("capacity", "bandwidth")),
        "matmul": Table(("sustained", "efficiency", "tiles", "ramp_k", "multiprocessors")),
        "attention": Table(("efficiency", "backward_efficiency", "ramp_k", "ramp_head_dim", "scores")),
        "overhead": Table(
            ("overlap", "straggler", "kernel_launch", "dispatch", "compiles", "blocking", "composes")
        ),
        "shared": Table(("devices", "alone")),
        "accuracy": Table(("low", "high")),
        "host": Table(("memory", "link", "bandwidth", "own"), {"disk": Table(("memory", "read", "write"))}),
        "machine": Table(
            ("node", "network", "cards_per_node", "devices_per_node", "domain", "devices_per_switch", "through_host",
             "relays")
        ),
        "cluster": Table(("nodes", "devices_per_node")),
        "links": Table(tables={"node": LINK, "nic": Table((*LINK.figures, "per_node"), LINK.tables)}),
    }
)  # fmt: skip


def check_keys(figures: Figures, table: Table) -> None:
    """A ``ProfileError`` that names the first key which is none of the table's, and those that are."""
    _check(figures, figures.tables, table, ())


def _check(figures: Figures, given: Mapping[str, Any], table: Table, at: tuple[str, ...]) -> None:
    for key, held in given.items():
        within = table.tables.get(key, table.named)
        if key not in table.known and table.named is None:
            where = f"Under [{'.'.join(at)}] there may be" if at else "Known are the tables"
            cause = f"{'.'.join((*at, key))} is nothing that is read{nearest(key, table.known)}"
            raise ProfileError(figures.path, cause, f"{where} {', '.join(table.known)}")
        if within is not None and isinstance(held, dict) and "value" not in held:
            _check(figures, held, within, (*at, key))
