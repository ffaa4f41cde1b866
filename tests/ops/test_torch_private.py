"""Private names of torch stand in one module, which the others import them from."""

from __future__ import annotations

from pathlib import Path

import torch

from autoplan.ops.torch_private import FakeTensorMode, TorchDispatchMode, is_fake, without_modes
from tests.support.sources import source_of

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "autoplan" / "ops" / "torch_private.py"


def test_names_come_from_one_module() -> None:
    held = {name for module, name in source_of(HOME).imports if module.startswith("torch.")}
    assert {"FakeTensor", "TorchDispatchMode", "_disable_current_modes"} <= held
    for path in (ROOT / "autoplan").rglob("*.py"):
        again = {name for module, name in source_of(path).imports if module.startswith("torch.") and name in held}
        assert not again or path == HOME, f"{path.relative_to(ROOT)}: import {again} from autoplan.ops.torch_private"


def test_tensors_without_values_are_told() -> None:
    with FakeTensorMode():
        made = torch.empty(2)
        assert is_fake(made) and is_fake(torch.nn.Parameter(made)) and is_fake(made + 1)
    assert not is_fake(torch.empty(2)) and not is_fake(torch.empty(2, device="meta")) and not is_fake(2)


def test_no_mode_sees_what_runs_without_modes() -> None:
    seen: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    with Noting():
        with without_modes():
            torch.ones(1)
        assert not seen
        torch.ones(1)
    assert seen
