"""Published times of collectives against the links that come with the package.

A row is a group of devices on a fabric, a kind of collective, bytes, and a time or the bus bandwidth that nccl-tests
derives from one: (n-1)/n · bytes / time, and twice that for an all-reduce.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cost_models.collective import COLLECTIVES
from cost_models.hardware import Link, LinkPath, read_fabric
from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.result import TableResult, results_of
from tests.bench.closed_form.rows import Row

FILE = "nccl_collectives.csv"
PEAK_BYTES = 16 * 2**30
"""Of a row that says "large": nothing but the bandwidth counts there."""
SMALL_BYTES = 2**20
"""Below this, latencies count."""

ASSUMPTION = (
    'Rows with a bus bandwidth alone are times of that bandwidth; those that say "large" are priced at 16 GiB. Where'
    " the devices aren't stated: 8 in a node, 8 nodes."
)

KINDS = {
    "all_reduce": "all-reduce", "all_reduce NVLS": "all-reduce", "all_reduce ring": "all-reduce",
    "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all",
}  # fmt: skip
PASSES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
"""Times that (n-1)/n of the bytes are on the bus."""


@dataclass(frozen=True)
class Place:
    """Where rows were measured.

    series           the devices
    gpu, fabric      patterns of those columns, matched whole
    node, network    names of fabrics
    per_node, nodes  devices in a node, nodes; 0: as many as the row says, or with ``per_node`` fill the row's devices
    cards            network cards that a node's devices share
    adds             whether a switch that adds was in use
    """

    series: str
    gpu: str
    fabric: str
    node: str
    per_node: int = 0
    nodes: int = 1
    network: str = ""
    cards: int = 8
    adds: bool = True

    @property
    def fabrics(self) -> tuple[str, ...]:
        return (self.node, self.network) if self.network else (self.node,)

    def path(self, devices: int, links: Mapping[str, Link]) -> LinkPath:
        """The group's levels, with their links by fabric: nodes in the order of the ranks, each with its share of the
        cards."""
        inside = min(self.per_node or devices, devices)
        node = links[self.node]
        within = (inside, node if self.adds else without_switch(node))
        if not self.network:
            return (within,)
        share = min(1.0, self.cards / self.per_node)
        return within, (devices // inside, links[self.network].scaled(share))


PLACES = (
    Place("A100", "A100", "NVLink intra-node|NVLink3 intra(-node)?", "nvswitch-3"),
    Place("A100", r"A100 8x \(NVSwitch\)", "NVLink3 intra-node", "nvswitch-3"),
    Place("A100 nodes", "A100", "DGX A100: NVL3.8x200Gb RDMA", "nvswitch-3", 8, 8, "ib-hdr"),
    Place("A100 nodes", "A100", "DGX A100 8x200Gb RDMA", "nvswitch-3", 8, 4, "ib-hdr"),
    Place("A100 nodes", "A100-SXM4-40GB 3x8", "4x HDR200 per node", "nvswitch-3", 8, 3, "ib-hdr", 4),
    Place("V100", "V100", "NVLink2? intra-node", "nvlink2"),
    Place("V100 nodes", "V100 DGX-1 multi-node", "4x EDR100", "nvlink2", 8, 8, "ib-edr", 4),
    Place("H100, H200 rings", "H[12]00.*", "NVLink4 (intra-node|NVLS off .ring.)", "nvswitch-4", adds=False),
    Place("H100, H200", "H[12]00.*", "NVLink4 (SHARP( intra-node)?|default algo|intra)", "nvswitch-4"),
    Place("H100 nodes", "H100", "DGX H100: NVL4.8x400Gb RDMA", "nvswitch-4", 8, 8, "ib-ndr", adds=False),
    Place("H100 nodes", "H100", "DGX H100 8x400Gb RDMA", "nvswitch-4", 8, 4, "ib-ndr"),
    Place("H100 nodes", "H100", "DGX H100: SHARP 8x400Gb RDMA", "nvswitch-4", 8, 8, "ib-ndr-sharp"),
    Place("B200 rings", "B200", "NVLink5 NVLS off .ring.", "nvswitch-5", adds=False),
    Place("B200", "B200.*", "NVLink5 (intra|intra-node .P6-B200.|default algo)", "nvswitch-5"),
    Place("B200 nodes", "B200 4x8", "NVLink5 . 8x400Gb EFAv4", "nvswitch-5", 8, 4, "efa-400"),
    Place("GB200", "GB200 NVL72", "NVLink5", "nvl72"),
    Place("A800-class", r"unstated \(A800-class.*", "1 node", "nvlink3-a800"),
    Place("MI200", "MI200.*", "intra-node XGMI", "xgmi-2-mi200"),
    Place("MI300X", "MI300X", "XGMI", "xgmi-3"),
    Place("PCIe", "PCIe Gen4", "intra-node", "pcie-4"),
    Place("PCIe", "PCIe Gen5.*", "intra(-node)?", "pcie-5"),
    Place("networks", "any", "100GbE TCP multi-node", "nvswitch-3", 8, 8, "ethernet-100g", 1),
    Place("networks", "any", "1x200Gb RDMA multi-node", "nvswitch-3", 8, 8, "ib-hdr", 1),
    Place("networks", "any", "1x400Gb RDMA multi-node", "nvswitch-4", 8, 8, "ib-ndr", 1),
    Place("networks", "any", "2x200Gb RDMA", "nvswitch-3", 8, 4, "ib-hdr", 2),
    Place("networks", "any", "2x400Gb RDMA", "nvswitch-4", 8, 4, "ib-ndr", 2),
)
"""The first that matches is taken."""


@dataclass(frozen=True)
class Sample:
    """One measured collective of so many ``devices``; ``bytes`` counts as its kind's function does."""

    row: int
    place: Place
    kind: str
    devices: int
    bytes: float
    measured_s: float

    @property
    def label(self) -> str:
        return f"{self.kind} of {self.bytes / 2**20:g} MiB on {self.devices}"

    @property
    def series(self) -> str:
        return f"{self.place.series}, {self.kind}"


def without_switch(link: Link) -> Link:
    """The link with its switch turned off, as NCCL_ALGO=Ring does."""
    kinds = tuple((kind, without_switch(own)) for kind, own in link.kinds)
    return dataclasses.replace(link, switch=None, kinds=kinds)


def sample_of(row: Row) -> Sample:
    """A row as a sample; ``Unusable`` where it doesn't say enough."""
    if row["collective"] not in KINDS:
        raise Unusable(f"{row['collective']}: a copy between two devices, no collective")
    kind = KINDS[row["collective"]]
    place = _place(row)
    devices = _devices(row, place)
    bytes = PEAK_BYTES if row["bytes"].startswith("large") else row.positive("bytes")
    return Sample(row.number, place, kind, devices, bytes, _measured_s(row, kind, bytes, devices))


def _place(row: Row) -> Place:
    gpu, fabric = row["gpu"], row["fabric"]
    if row["collective"] == "all_reduce NVLS" or "NVLS/SHARP" in gpu:
        fabric = "NVLink4 SHARP"
    for place in PLACES:
        if re.fullmatch(place.gpu, gpu) and re.fullmatch(place.fabric, fabric):
            return place
    raise Unusable("neither bytes nor cards are stated" if "gpus_per_node" in fabric else f"{gpu}, {fabric}: unknown")


def _devices(row: Row, place: Place) -> int:
    if row.get("n_gpus"):
        return row.whole("n_gpus")
    return (place.per_node or 8) * place.nodes


def _measured_s(row: Row, kind: str, bytes: float, ranks: int) -> float:
    if row.get("time_us"):
        return row.positive("time_us") / 1e6
    bus = float(row["busbw_GBps"].split()[0]) * 1e9
    return PASSES[kind] * (ranks - 1) / ranks * bytes / bus


def fabrics_of(held: Iterable[Sample]) -> dict[str, Link]:
    """The links that samples need, by fabric."""
    return {name: read_fabric(name) for name in dict.fromkeys(name for each in held for name in each.place.fabrics)}


def predicted_s(sample: Sample, links: Mapping[str, Link]) -> float:
    """Seconds of a sample on links by fabric."""
    return float(COLLECTIVES[sample.kind](sample.bytes, sample.place.path(sample.devices, links)))


def samples(rows: Iterable[Row]) -> tuple[tuple[Sample, ...], tuple[tuple[int, str], ...]]:
    """All samples of the file, and how many rows were left out for which reason."""
    found: list[Sample] = []
    reasons: Counter[str] = Counter()
    for row in rows:
        try:
            found.append(sample_of(row))
        except Unusable as error:
            reasons[str(error)] += 1
    return tuple(found), tuple((count, reason) for reason, count in reasons.items())


def collective_results(rows: Iterable[Row]) -> tuple[TableResult, ...]:
    """Errors of the collectives from 1 MiB up, then of those below, for each device and kind.

    The halves are those of ``halves.split`` within a device, a kind, and a side of 1 MiB."""
    found, left_out = samples(rows)
    links = fabrics_of(found)
    large = [_point(sample, links) for sample in found if sample.bytes >= SMALL_BYTES]
    small = [_point(sample, links) for sample in found if sample.bytes < SMALL_BYTES]
    quantity = "time of a collective, s"
    return (
        *results_of("collectives from 1 MiB", quantity, large, ASSUMPTION, FILE, left_out),
        *results_of("collectives below 1 MiB", quantity, small, ASSUMPTION, FILE),
    )


def _point(sample: Sample, links: Mapping[str, Link]) -> Point:
    group = f"{sample.devices} devices"
    return Point(sample.row, sample.label, group, sample.series, predicted_s(sample, links), sample.measured_s)
