"""The page on Lightning: its own code, in Lightning's loop, takes the steps that one device takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("pytorch_lightning")

from torch import nn

import autoplan
from tests.docs.pages import ROOT, Page
from tests.support.forked import in_fork, run_ranks

CODE = [code.text for code in Page(ROOT / "docs" / "how_to" / "lightning.md").code("python")]
NET = """
import json, os, warnings
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.layers(x)

torch.manual_seed(0)
x, y = torch.randn(64, 16), torch.randint(4, (64,))
"""
TRAIN = """
warnings.simplefilter("ignore")  # Lightning has advice
planned = Planned("out/net")
loader = DataLoader(TensorDataset(x, y), batch_size=32)
trained = trainer(max_epochs=2, logger=False, enable_progress_bar=False)
trained.fit(planned, loader, loader)
found = {name: value.tolist() for name, value in planned.program.full_state_dict().items()}
found |= {"loss": trained.callback_metrics["loss"].item(), "steps": trained.global_step}
if os.environ["RANK"] == "0":
    open("found.json", "w").write(json.dumps(found))
planned.program.close()
"""


@pytest.mark.parametrize("ranks", [1, 2])
@in_fork
def test_lightning_s_loop_takes_one_device_s_steps(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page", "autoplan": autoplan, "nn": nn}
    exec(NET + CODE[0].replace("1x2 cpu", f"1x{ranks} cpu"), names)
    x, y = names["x"], names["y"]
    names["plan_for"](names["Net"], (x[:32], y[:32]))
    script = tmp_path / "fit.py"
    script.write_text(NET + CODE[1] + TRAIN)
    for done in run_ranks(script, ranks):
        assert done.returncode == 0, done.stderr
    found = json.loads(Path("found.json").read_text())
    torch.manual_seed(0)
    net = names["Net"]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for rows in (slice(0, 32), slice(32, 64)) * 2:
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found.pop("steps") == 4 and found.pop("loss") == pytest.approx(loss.item(), rel=1e-5)
    for name, value in found.items():
        torch.testing.assert_close(torch.tensor(value), net.state_dict()[name], rtol=1e-5, atol=1e-6)
