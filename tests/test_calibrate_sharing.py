"""What the rates of one device, with and without others at work, say of the processors that they share."""

from __future__ import annotations

import pytest

from cost_models.calibrate.sharing import sharing


def test_devices_of_their_own_share_nothing() -> None:
    assert sharing(8, 4, 100.0, 101.0, 104.0) == (1, 1.0)


def test_processes_of_a_node_share_its_cores() -> None:
    """Two machines of two cores and four processes each."""
    assert sharing(8, 4, 50.0, 51.0, 100.0) == (4, pytest.approx(2.0))


def test_nodes_of_one_machine_share_all_of_it() -> None:
    assert sharing(4, 2, 50.0, 98.0, 102.0) == (4, pytest.approx(2.04))


def test_no_device_gains_more_than_there_is() -> None:
    assert sharing(2, 2, 10.0, 10.0, 50.0) == (2, 2.0)
