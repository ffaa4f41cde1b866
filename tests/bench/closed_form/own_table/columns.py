"""A table of one's own, of which a line is a step that was measured, or is to be.

Columns, in any order; an empty cell is the same as no column:

    hidden, layers, heads, sequence   the model; "seq_len" is "sequence" too
    device                            a shipped profile's name, or the path of a profile (ends in .toml)
    any other field of Transformer    vocabulary (50304 where absent), kv_heads, ffn, gated, tied, bias, norm, …
    any field of Recipe               tensor, context, data, pipeline, expert, zero, micro_batch, sequence_parallel,
                                      schedule, virtual_stages, recompute, precision, matmul, fused_attention, …
    microbatches, or global_batch     sequences of a step; neither: one microbatch
    nodes, devices_per_node           the machine (8 a node, or all devices where they are fewer), or "devices" in all;
                                      absent: as many as the axes have. Without "data", the devices that are left
    nics_per_node, network, node_link network cards that a node's devices share, fabrics between nodes and within one
                                      (ib-hdr, roce-400, nvswitch-3, …; absent: as the device's profile has them)
    measured_s                        seconds of a step; or tokens_per_s_per_device; neither: predicted only
    label, group                      the line's name, and the model size within which ranks are compared

Fields that a line leaves out have the defaults of ``Transformer`` and ``Recipe``: bfloat16, Adam, fused attention that
skips what is masked, eager, no recomputation, no ZeRO, an embedding that is tied, linears with biases.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from cost_models.errors import ProfileError
from cost_models.hardware import Topology
from tests.bench.closed_form.case import STEP, Case, Machines, Unusable, share
from tests.bench.closed_form.transformer.model import CHOICES, Recipe, Transformer

VOCABULARY = 50304
ALIASES = {"seq_len": "sequence", "n_gpus": "devices", "ga": "microbatches", "measured_seconds": "measured_s"}
MODEL = {field.name: field for field in fields(Transformer)}
RECIPE = {field.name: field for field in fields(Recipe)}
MACHINE = ("device", "devices", "nodes", "devices_per_node", "nics_per_node", "network", "node_link")
OTHER = ("global_batch", "measured_s", "tokens_per_s_per_device", "label", "group", "source")
REQUIRED = ("hidden", "layers", "heads", "sequence", "device")
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class OwnTableError(ValueError):
    """A table that can't be read: where, why, and what to do."""

    def __init__(self, where: str, cause: str, remedy: str) -> None:
        self.value, self.cause, self.remedy = where, cause, remedy
        super().__init__(f"{where}: {cause}. {remedy}.")

    def __reduce__(self) -> tuple:
        return type(self), (self.value, self.cause, self.remedy)


@dataclass(frozen=True)
class _Line:
    """A line by the names of its fields, without empty cells; ``where`` names it in errors."""

    where: str
    text: Mapping[str, str]

    def whole(self, name: str) -> int | None:
        """A whole number from 1; None where the line has none."""
        if name not in self.text:
            return None
        value = self.text[name]
        if not value.isdecimal() or int(value) < 1:
            raise self.error(f"{name} is {value!r}", "Give a whole number from 1")
        return int(value)

    def real(self, name: str) -> float | None:
        """A positive number; None where the line has none."""
        if name not in self.text:
            return None
        try:
            value = float(self.text[name])
        except ValueError as error:
            raise self.error(f"{name} is {self.text[name]!r}", "Give a number") from error
        if not 0 < value < math.inf:
            raise self.error(f"{name} is {value:g}", "Give a number above 0")
        return value

    def error(self, cause: str, remedy: str) -> OwnTableError:
        return OwnTableError(self.where, cause, remedy)


def read_own(path: Path) -> tuple[Case, ...]:
    """The lines of a table of one's own; ``measured_s`` is NaN where a line states no time.

    An ``OwnTableError`` names the line, the cause and the remedy: an unknown column, a missing one, a value that isn't
    of its kind, ranks that don't fill the devices, a batch that doesn't divide; a device that isn't known too.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = [_known(name, path) for name in reader.fieldnames or ()]
            lines = list(reader)
    except OSError as error:
        raise OwnTableError(str(path), f"can't be read ({error.strerror})", "Give the path of a CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise OwnTableError(str(path), f"is no CSV in UTF-8 ({error})", "Save it as one, with commas") from error
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise OwnTableError(str(path), f"has no column {missing[0]}", f"Give at least {', '.join(REQUIRED)}")
    machines = Machines()
    return tuple(_case(path, number, line, machines) for number, line in enumerate(lines, start=1))


def _known(name: str, path: Path) -> str:
    plain = name.strip().lower()
    found = ALIASES.get(plain, plain)
    every = (*MODEL, *RECIPE, *MACHINE, *OTHER)
    if found not in every:
        near = difflib.get_close_matches(found, (*every, *ALIASES), n=1)
        hint = f"Nearest is {near[0]}" if near else f"Known are {', '.join(every)}"
        raise OwnTableError(str(path), f"has a column {name!r} that isn't known", hint)
    return found


def _case(path: Path, number: int, text: Mapping[str | None, Any], machines: Machines) -> Case:
    if None in text or None in text.values():
        cause = f"has {'more' if None in text else 'fewer'} cells than columns"
        raise OwnTableError(f"{path.name} line {number}", cause, "Give one cell for each column; quote commas")
    cells = {_known(str(name), path): value.strip() for name, value in text.items() if value.strip()}
    line = _Line(f"{path.name} line {number}", cells)
    for name in REQUIRED:
        if name not in cells:
            raise line.error(f"states no {name}", "Fill the cell")
    model = Transformer(**{"vocabulary": VOCABULARY, **_fields(line, MODEL)})
    try:
        recipe = _recipe(line)
        topology = _machine(line, recipe, machines)
    except (Unusable, ProfileError) as error:
        raise line.error(str(error).rstrip("."), "See the columns in the help of this command") from error
    label = cells.get("label") or f"line {number}: {_shape(recipe)}"
    group = cells.get("group") or f"hidden {model.hidden}, {model.layers} layers"
    return Case(path.stem, number, label, group, STEP, model, recipe, topology, _measured_s(line, model, recipe))


def _recipe(line: _Line) -> Recipe:
    """With the data axis from the devices, and the microbatches from the global batch, where they aren't stated."""
    given = _fields(line, RECIPE)
    devices = _devices(line)
    others = math.prod(given.get(name, 1) for name in ("tensor", "context", "pipeline"))
    if devices is not None and "data" not in given:
        given["data"] = share(devices, others)
    batch = line.whole("global_batch")
    if batch is not None and "microbatches" not in given:
        given["microbatches"] = share(batch, given.get("data", 1), given.get("micro_batch", 1))
    recipe = Recipe(**given)
    if devices is not None and recipe.devices != devices:
        raise Unusable(f"{_shape(recipe)} are {recipe.devices} ranks on {devices} devices")
    if batch is not None and recipe.sequences != batch:
        raise Unusable(f"{recipe.microbatches} microbatches make {recipe.sequences} sequences, not a batch of {batch}")
    return recipe


def _machine(line: _Line, recipe: Recipe, machines: Machines) -> Topology:
    cards, network, inside = line.whole("nics_per_node"), line.text.get("network", ""), line.text.get("node_link", "")
    return machines.of(line.text["device"], recipe.devices, _per_node(line, recipe), cards, network, inside)


def _per_node(line: _Line, recipe: Recipe) -> int:
    """Devices of a node: as stated, or all over the nodes, or 8."""
    nodes = line.whole("nodes")
    return line.whole("devices_per_node") or (8 if nodes is None else share(recipe.devices, nodes))


def _devices(line: _Line) -> int | None:
    devices, nodes, each = (line.whole(name) for name in ("devices", "nodes", "devices_per_node"))
    if nodes is None or each is None:
        return devices
    if devices not in (None, nodes * each):
        raise Unusable(f"{nodes} nodes of {each} aren't {devices} devices")
    return nodes * each


def _fields(line: _Line, known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that the line gives, each of the kind of its default."""
    made: dict[str, Any] = {}
    for name, field in known.items():
        if name not in line.text:
            continue
        default = None if field.default is MISSING else field.default
        text = line.text[name]
        if isinstance(default, bool):
            if text.lower() not in TRUTHS:
                raise line.error(f"{name} is {text!r}", "Give true or false")
            made[name] = TRUTHS[text.lower()]
        elif isinstance(default, str):
            made[name] = text
        elif isinstance(default, float):
            made[name] = line.real(name)
        elif text == "0" and default == 0:
            made[name] = 0
        else:
            made[name] = line.whole(name)
        if name in CHOICES and made[name] not in CHOICES[name]:
            raise line.error(f"{name} is {text!r}", f"Give one of {', '.join(map(str, CHOICES[name]))}")
    return made


def _measured_s(line: _Line, model: Transformer, recipe: Recipe) -> float:
    measured_s, rate = line.real("measured_s"), line.real("tokens_per_s_per_device")
    if measured_s is not None:
        return measured_s
    return math.nan if rate is None else float(recipe.sequences * model.sequence / (rate * recipe.devices))


def _shape(recipe: Recipe) -> str:
    axes = {name: getattr(recipe, name) for name in ("tensor", "context", "data", "pipeline")}
    return " · ".join(f"{name} {size}" for name, size in axes.items() if size > 1) or "one device"
