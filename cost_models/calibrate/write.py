"""The profile of what was fitted, as ``cost_models.hardware.load_device`` reads it: each figure with its unit, source
and date."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import ProfileError
from cost_models.hardware import Device, Link, load_device

CALIBRATED = "calibrated"


@dataclass(frozen=True)
class Origin:
    """What a profile says of itself: ``title`` in its first line, the date, and the source of each kind of figure.

    operators, links  as in "1x4 processes of … at once, mean error 4.1% on sizes not fitted"
    """

    title: str
    date: str
    operators: str
    links: str


def profile_text(
    device: Device, links: Mapping[str, Link], nodes: int, devices_per_node: int, origin: Origin
) -> str:
    """The profile as TOML.

    links  by level; of "nic" a device's share of the node's network, written as one card that all devices of the node
           share
    """
    lines = [f"# {origin.title}, {origin.date}.", "# Bandwidths are what a device reaches while all others use theirs."]
    for table, figures in _device_tables(device, origin):
        lines += ["", f"[{table}]", *figures]
    counted = f"{CALIBRATED}: the processes that torchrun started"
    shape = {"nodes": nodes, "devices_per_node": devices_per_node}
    lines += ["", "[cluster]", *(_figure(name, n, "1", counted, origin.date) for name, n in shape.items())]
    for name, link in links.items():
        share = devices_per_node if name == "nic" else 1
        for table, figures in _link_tables(f"links.{name}", link.scaled(share), origin):
            lines += ["", f"[{table}]", *figures]
            if table == "links.nic":
                source = f"{CALIBRATED}: all of a node's cards as one"
                lines.append(_figure("per_node", 1, "1", source, origin.date))
    return "\n".join(lines) + "\n"


def _figure(name: str, value: object, unit: str, source: str, date: str) -> str:
    told = f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
    rest = (f"{key} = {json.dumps(text)}" for key, text in (("unit", unit), ("source", source), ("date", date)))
    return f"{name} = {{ value = {told}, {', '.join(rest)} }}"


def _device_tables(device: Device, origin: Origin) -> Iterator[tuple[str, list[str]]]:
    fitted, told = f"{CALIBRATED}: {origin.operators}", f"{CALIBRATED}: as the machine tells it"

    def line(name: str, value: object, unit: str = "1", source: str = fitted) -> str:
        return _figure(name, value, unit, source, origin.date)

    yield "peak", [line(dtype, peak / 1e9, "GFLOP/s") for dtype, peak in device.peaks]
    yield "memory", [
        line("capacity", device.memory_bytes, "B", told),
        line("reserved", device.reserved_bytes, "B", f"{CALIBRATED}: taken before the first tensor"),
        line("bandwidth", device.memory_bandwidth_bytes_per_s / 1e9, "GB/s"),
        line("efficiency", device.memory_efficiency),
        line("update", device.update_efficiency),
    ]
    if device.cache_bytes:
        yield "cache", [
            line("capacity", device.cache_bytes / 1e6, "MB"),
            line("bandwidth", device.cache_bandwidth_bytes_per_s / 1e9, "GB/s"),
        ]
    yield "matmul", [
        line("sustained", device.matmul_sustained, source=f"{CALIBRATED}: measured while all devices compute"),
        line("efficiency", device.matmul_efficiency),
        line("tiles", [list(tile) for tile in device.matmul_tiles], "rows, columns, share"),
        line("ramp_k", device.matmul_ramp_k),
        line("multiprocessors", device.multiprocessors, source=told),
    ]
    if device.matmul_shares:
        yield "shares", [line(dtype, share) for dtype, share in device.matmul_shares]
    yield "attention", [
        line("efficiency", device.attention_efficiency),
        line("backward_efficiency", device.attention_backward_efficiency),
        line("ramp_k", device.attention_ramp_k),
        line("ramp_head_dim", device.attention_ramp_head_dim),
    ]
    compiles = "autoplan.runtime.parallel.compiled: what programs do on such a device"
    blocking = "torch.distributed.fsdp: without streams its collectives are waited for"
    composes = "torch 2.13: rms_norm has a kernel of its own on CUDA and MPS only"
    yield "overhead", [
        line("overlap", device.overlap_slowdown),
        line("straggler", device.straggler_per_doubling, source="not measured: assumed none"),
        line("kernel_launch", device.kernel_launch_s * 1e6, "us"),
        line("dispatch", device.dispatch_s * 1e6, "us"),
        line("compiles", int(device.compiles), source=compiles),
        line("blocking", int(device.blocking), source=blocking),
        line("composes", int(device.composes), source=composes),
    ]
    if device.blocking:
        own = "a processor's memory is the host's: what is kept there is copied within it, at memory.bandwidth"
        yield "host", [line("own", 1, source=own)]
    if device.sharers > 1:
        yield "shared", [line("devices", device.sharers), line("alone", device.alone)]


def _link_tables(table: str, link: Link, origin: Origin) -> Iterator[tuple[str, list[str]]]:
    """The link's table, that of its bandwidth by members, and those of each kind of collective."""
    source = f"{CALIBRATED}: {origin.links}"

    def line(name: str, value: float, unit: str) -> str:
        return _figure(name, value, unit, source, origin.date)

    yield table, [
        line("latency", link.latency_s * 1e6, "us"),
        line("bandwidth", link.bandwidth_bytes_per_s / 1e9, "GB/s"),
        line("startup", link.startup_s * 1e6, "us"),
        *([line("turn", link.turn_s * 1e6, "us")] if link.turn_s else []),
        *([line("burst", link.burst_bytes, "B")] if link.burst_bytes else []),
    ]
    if link.group_bandwidths:
        rates = [line(str(members), rate / 1e9, "GB/s") for members, rate in link.group_bandwidths]
        yield f"{table}.group_bandwidth", rates
    for kind, own in link.kinds:
        yield from _link_tables(f"{table}.{kind}", own, origin)


def check_writable(path: Path) -> None:
    """A ``ProfileError`` where no profile can be written: told before anything is measured."""
    if path.suffix != ".toml":
        raise ProfileError(path, "is no profile's name", "Give a path that ends in .toml")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-"):
            pass
    except OSError as error:
        cause = f"can't be written ({error.strerror})"
        raise ProfileError(path, cause, "Give a path in a folder that exists and may be written to") from error
    if path.is_dir():
        raise ProfileError(path, "is a folder", "Give a file's path")


def write_profile(path: Path, text: str) -> None:
    """Writes the profile whole or not at all, once it can be read back."""
    write_text(path, text, load_device)


def write_text(path: Path, text: str, check: Callable[[Path], object] = Path.exists) -> None:
    """Writes a file whole or not at all: beside its place first, where ``check`` may still refuse it."""
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        temporary.write_text(text, encoding="utf-8")
        check(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def table_text(rows: Sequence[Mapping[str, object]]) -> str:
    """The measured table as CSV, one line for each case."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
