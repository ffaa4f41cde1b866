"""The page on models that train in turns: its own code, on two ranks, takes the steps that one device takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.docs.pages import ROOT, Page
from tests.support.forked import run_ranks

CODE = [code.text for code in Page(ROOT / "docs" / "how_to" / "gan.md").code("python")]
TURNS = CODE[0] + CODE[2]
TRAIN = """
import json, os
found = train(4)
open(f"found-{os.environ['RANK']}.json", "w").write(json.dumps(found))
"""


def test_turns_on_two_ranks_are_one_device_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    exec(compile(TURNS, "gan.md", "exec"), names)
    names["plan_turns"]("1x2 cpu", parallelism="ddp", effort="fast")
    script = tmp_path / "turns.py"
    script.write_text(TURNS + TRAIN)
    for done in run_ranks(script, 2):
        assert done.returncode == 0, done.stderr
    found = json.loads(Path("found-0.json").read_text())
    torch.testing.assert_close(found, eagerly(names), rtol=1e-4, atol=1e-6)


def test_at_once_each_player_has_the_gradient_of_its_own_loss() -> None:
    names: dict = {"__name__": "page"}
    exec(compile(CODE[0] + CODE[1], "gan.md", "exec"), names)
    torch.manual_seed(0)
    players, z, real = names["AtOnce"](), torch.randn(8, 8), torch.randn(8, 16)
    players(z, real).backward()
    found = {name: p.grad.clone() for name, p in players.named_parameters()}
    for part, loss in (("g", players.of_g(z)), ("d", players.of_d(z, real))):
        own = dict(getattr(players, part).named_parameters(part))
        for name, wanted in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
            torch.testing.assert_close(found[name], wanted, msg=name)
    result = names["plan"].what_if("1x2 cpu", parallelism="ddp").verify()
    assert result.passed, str(result)


def eagerly(names: dict) -> list[list[float]]:
    torch.manual_seed(0)
    players = names["Players"]()
    d, g = (
        torch.optim.AdamW(part.parameters(), lr=rate, betas=(0.5, 0.999))
        for part, rate in ((players.d, 4e-3), (players.g, 1e-3))
    )
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(4):
        z, real = torch.randn(8, 8, generator=generator), torch.randn(8, 16, generator=generator)
        of_d = players.of_d(z, real)
        of_d.backward()
        d.step()
        players.zero_grad()
        of_g = players.of_g(z)
        of_g.backward()
        g.step()
        players.zero_grad()
        losses.append([of_d.item(), of_g.item()])
    return losses
