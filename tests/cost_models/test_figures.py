from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import ProfileError
from cost_models.figures import UNITS, Figures

PROFILES = Path(__file__).resolve().parents[2] / "cost_models" / "profiles"
PROFILE = """
[memory]
capacity = { value = 80, unit = "GB", source = "data sheet", date = "2023-03" }
latency = { value = 2.5, unit = "us", source = "measured", date = "2026-11" }
nothing = { value = 0, unit = "1", source = "chosen", date = "2026-11" }
negative = { value = -1, unit = "GB", source = "chosen", date = "2026-11" }
unsourced = { value = 1, unit = "GB", source = "", date = "2026-11" }
[matmul]
tiles = { value = [[256, 128, 1.0], [64, 64, 0.7]], unit = "rows, columns, share", source = "x", date = "2026-11" }
"""


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    path = tmp_path / "device.toml"
    path.write_text(PROFILE)
    return Figures.read(path)


def test_numbers_come_in_base_units(figures: Figures) -> None:
    assert figures.number("memory", "capacity", measures="bytes") == 80e9
    assert figures.number("memory", "latency", measures="seconds") == pytest.approx(2.5e-6)
    assert figures.triples("matmul", "tiles") == ((256, 128, 1.0), (64, 64, 0.7))
    assert figures.has("memory", "capacity") and not figures.has("links", "nic")


def test_a_name_is_no_figure(figures: Figures, tmp_path: Path) -> None:
    path = tmp_path / "named.toml"
    path.write_text('[machine]\nnode = "nvswitch-3"\nnetwork = 7\n')
    assert Figures.read(path).text("machine", "node") == "nvswitch-3"
    with pytest.raises(ProfileError, match=r"machine\.network has the value 7\. Give a name"):
        Figures.read(path).text("machine", "network")
    with pytest.raises(ProfileError, match=r"machine\.node is missing"):
        figures.text("machine", "node")


@pytest.mark.parametrize(
    ("key", "measures", "said"),
    [
        ("speed", "bytes/s", "memory.speed is missing. Add it under [memory] as speed = { value = …"),
        ("capacity", "seconds", "memory.capacity is in 'GB', which is no unit of seconds. Use one of s, ms, us"),
        ("negative", "bytes", "memory.negative has the value -1. Give a number that is not negative"),
        ("unsourced", "bytes", "memory.unsourced lacks its source. Give each of value, unit, source, date"),
    ],
)
def test_a_figure_that_is_none_is_named(figures: Figures, key: str, measures: str, said: str) -> None:
    with pytest.raises(ProfileError) as error:
        figures.number("memory", key, measures=measures)
    assert str(error.value).startswith(f"{figures.path}: {said}")


def test_zero_is_refused_where_it_would_divide(figures: Figures) -> None:
    assert figures.number("memory", "nothing", measures="count") == 0
    with pytest.raises(ProfileError, match=r"memory\.nothing is 0\. Give a positive number"):
        figures.positive("memory", "nothing", measures="count")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"gone\.toml: can't be read"):
        Figures.read(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("[memory\n")
    with pytest.raises(ProfileError, match=r"bad\.toml: is not TOML"):
        Figures.read(tmp_path / "bad.toml")


def leaves(table: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure of a profile with its place."""
    for key, entry in table.items():
        if isinstance(entry, dict) and any(isinstance(inner, dict) for inner in entry.values()):
            yield from leaves(entry, f"{where}{key}.")
        else:
            yield f"{where}{key}", entry


NAMES = ("machine.node", "machine.network")  # what isn't a figure but names a fabric


@pytest.mark.parametrize("path", sorted(PROFILES.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_figure_has_value_unit_source_and_date(path: Path) -> None:
    found = dict(leaves(Figures.read(path).tables))
    assert found
    for place, figure in found.items():
        if place in NAMES:
            assert isinstance(figure, str) and figure
            continue
        assert isinstance(figure, dict) and {"value", "unit", "source", "date"} <= set(figure), place
        assert figure["unit"] in UNITS and figure["source"] and figure["date"], place
