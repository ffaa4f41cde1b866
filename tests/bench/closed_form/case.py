"""One measured time as what the cost models are asked, and the machines that tables name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cost_models.hardware import Device, Interconnect, Link, Topology, load_device, read_fabric
from tests.bench.closed_form.transformer.model import Recipe, Transformer

STEP, LAYER_FORWARD, LAYER_BACKWARD, LAYER = "step", "layer forward", "layer backward", "layer"
EXPERTS_FORWARD, EXPERTS_BACKWARD = "experts forward", "experts backward"
"""What a case measures: a step; one layer's passes (both: "layer"); the passes of a mixture's feed-forward alone."""


@dataclass(frozen=True)
class Case:
    """One measured time.

    table, row    the table's name, and which of its measurements this is, from 1: the line, unless one holds several;
                  times that aren't independent, a forward and a backward and their sum, share one
    label, group  what the row is called, and the model size within which ranks are compared
    what          which time: "step", "layer forward", ...
    measured_s    seconds
    """

    table: str
    row: int
    label: str
    group: str
    what: str
    model: Transformer
    recipe: Recipe
    topology: Topology
    measured_s: float

    @property
    def device(self) -> str:
        return self.topology.device.name


@dataclass(frozen=True)
class Machines:
    """Topologies of known devices; a profile is read once for all rows of a file."""

    devices: dict[str, tuple[Device, Interconnect]] = field(default_factory=dict)
    fabrics: dict[str, Link] = field(default_factory=dict)

    def of(
        self, device: str, devices: int, per_node: int = 8, cards: int | None = None, network: str = "",
        inside: str = "",
    ) -> Topology:  # fmt: skip
        """``devices`` of a known kind in nodes of ``per_node``.

        cards            network cards that a node's devices share
        network, inside  names of fabrics, between nodes and within one

        What isn't given is as the device's profile has it. A ``ProfileError`` where a device or fabric isn't known;
        ``Unusable`` where the last node wouldn't be whole.
        """
        if device not in self.devices:
            self.devices[device] = load_device(device)
        known, links = self.devices[device]
        within = min(devices, per_node)
        if devices % within:
            raise Unusable(f"{devices} devices don't fill nodes of {within}")
        links = replace(
            links, nics_per_node=links.nics_per_node if cards is None else cards,
            nic=self._fabric(network) if network else links.nic, node=self._fabric(inside) if inside else links.node,
        )  # fmt: skip
        return Topology(known, links.levels(devices // within, within))

    def _fabric(self, name: str) -> Link:
        if name not in self.fabrics:
            self.fabrics[name] = read_fabric(name)
        return self.fabrics[name]


class Unusable(ValueError):
    """A row that doesn't say enough to be priced; the text is the reason."""


def share(whole: int, *parts: int) -> int:
    """``whole`` divided by each of ``parts``; ``Unusable`` where that isn't whole."""
    for part in parts:
        if whole % part:
            raise Unusable(f"{whole} doesn't divide by {part}")
        whole //= part
    return whole
