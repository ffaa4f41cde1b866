"""How far off published steps were, as profiles say it: no interval is wider than where nothing is known."""

from __future__ import annotations

from cost_models.hardware import UNVALIDATED, device_names, load_device


def test_an_unknown_device_has_the_widest_interval() -> None:
    told = [share for name in device_names() if (share := load_device(name)[0].accuracy) is not None]
    assert told
    assert all(UNVALIDATED[0] <= low <= high <= UNVALIDATED[1] for low, high in told)
    assert (min(low for low, _ in told), max(high for _, high in told)) == UNVALIDATED
