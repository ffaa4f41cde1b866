"""The devices and fabrics that come with the package, as text."""

from collections.abc import Iterable, Sequence

from autoplan.errors import ClusterError
from cost_models.errors import ProfileError
from cost_models.hardware import device_names, fabric_names, figures_of, load_device, read_fabric

DEVICES = ("device", "usable GiB", "16-bit TFLOP/s", "memory TB/s", "node GB/s", "card GB/s", "cards")
FABRICS = ("fabric", "GB/s", "latency us", "adds in the switch")


def catalog_text() -> str:
    """Every shipped device with its main figures, and every fabric: bandwidths are what collectives reach, in 10^9."""
    devices, fabrics = _table(DEVICES, map(_device, device_names())), _table(FABRICS, map(_fabric, fabric_names()))
    return f"{devices}\n\n{fabrics}\n\nautoplan devices NAME tells all figures of one, with their sources.\n"


def figures_text(name: str) -> str:
    """Every figure of one device or fabric with its source; a ``ClusterError`` for a name that isn't known."""
    try:
        figures = figures_of(name)
    except ProfileError as error:
        raise ClusterError(error.value, error.cause, error.remedy) from error
    rows = []
    for figure in figures:
        unit = "" if figure.unit in ("1", "rows, columns, share") else figure.unit
        source = f"{figure.source} ({figure.date})" if figure.source else ""
        rows.append((figure.place, f"{figure.value} {unit}".strip(), source))
    return _table((name, "", "source"), rows) + "\n"


def _device(name: str) -> tuple[str, ...]:
    device, links = load_device(name)
    peaks = device.peak_flops_per_s
    rate = max(peaks.get(dtype, 0.0) for dtype in ("bfloat16", "float16"))
    network = (f"{links.nic.bandwidth_bytes_per_s / 1e9:g}", f"{links.nics_per_node:g}") if links.nic else ("-", "-")
    return (
        name, f"{device.usable_bytes / 2**30:.1f}", f"{rate / 1e12:.4g}",
        f"{device.memory_bandwidth_bytes_per_s / 1e12:.3g}", f"{links.node.bandwidth_bytes_per_s / 1e9:g}", *network,
    )  # fmt: skip


def _fabric(name: str) -> tuple[str, ...]:
    link = read_fabric(name)
    adds = "yes" if link.switch else "no"
    return name, f"{link.bandwidth_bytes_per_s / 1e9:g}", f"{link.latency_s * 1e6:g}", adds


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need, the first to the left."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip
