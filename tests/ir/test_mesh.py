"""Meshes: how ranks are numbered, and what an axis that isn't there counts as."""

from __future__ import annotations

import itertools

import pytest

from autoplan.ir.mesh import Axis, Mesh


def test_the_last_device_axis_varies_fastest():
    mesh = Mesh.of(pp=2, dp=3, tp=4, mb=8)
    assert [(a.name, a.size, a.stride) for a in mesh.axes] == [("pp", 2, 12), ("dp", 3, 4), ("tp", 4, 1), ("mb", 8, 0)]
    assert mesh.devices == 24
    coordinates = [tuple(mesh.coordinate(rank, name) for name in ("pp", "dp", "tp")) for rank in range(24)]
    assert coordinates == list(itertools.product(range(2), range(3), range(4)))


def test_microbatches_are_an_axis_but_no_devices():
    mesh = Mesh.of(dp=2, mb=4)
    assert mesh.axis("mb") == Axis("mb", 4, 0) and mesh.axis("mb").virtual
    assert [axis.name for axis in mesh.device_axes] == ["dp"]
    assert mesh.devices == 2


def test_a_missing_axis_has_one_member_and_no_coordinate():
    mesh = Mesh.of(dp=2)
    assert "tp" not in mesh and mesh.size("tp") == 1
    with pytest.raises(KeyError, match="mesh dp=2 has no axis 'tp'"):
        mesh.axis("tp")


def test_meshes_are_values():
    assert Mesh.of(dp=2, tp=2) == Mesh.of(dp=2, tp=2) != Mesh.of(tp=2, dp=2)
    assert str(Mesh.of(dp=2, tp=4, mb=3)) == "dp=2 tp=4 mb=3"
    assert Mesh.of().devices == 1
