"""Named systems, planned by name, exported and run: equal to one device, or to their own rule."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from autoplan.search.space.systems import SYSTEMS
from autoplan.verify.compare import Worst
from autoplan.verify.local_ranks import RankPool
from tests.bench.systems import __main__ as command
from tests.bench.systems import cases
from tests.bench.systems.cells import Errors, Outcome, check
from tests.bench.systems.document import document
from tests.bench.systems.mixed import Distance, Steps, distance, standard_error
from tests.bench.systems.reference import References, references


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, RankPool]]:
    with command.pools() as found:
        yield found


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(cases.made, cases.MIXED) as found:
        yield found


# Quick runs hold their parts: float64 by test_equality, float32 by test_mixed, rules of their own by test_asynchronous.
@pytest.mark.slow
@pytest.mark.parametrize(("system", "model"), cases.cells())
def test_a_named_system_does_what_it_should(
    pools: dict[int, RankPool], known: References, system: str, model: str
) -> None:
    outcome = check(pools, known, system, model)
    assert outcome.faults == (), outcome


def test_every_named_system_is_in_the_matrix_on_its_ranks() -> None:
    assert [system for system, _ in cases.cells()] == [s for s in SYSTEMS for _ in cases.models_of(s)]
    ranks = {system: cases.ranks_of(system) for system in SYSTEMS}
    assert [system for system, count in ranks.items() if count == 8] == ["2.5d", "3d", "3d-hybrid"]
    assert ranks["2d"] == ranks["ddp"] == 4


def outcome(**changed: object) -> Outcome:
    """A cell that holds every bound, but for what is changed."""
    exact = Errors(Worst(1e-15, "loss"), Worst(1e-14, "a.weight"), Worst(1e-13, "b.weight"))
    given = {"exact": exact, "sharded": Distance(1e-5, 1e-2), "single": Distance(1e-5, 1e-2), "plan": "dp=4"} | changed
    return Outcome("ddp", "llama", 4, **given)  # type: ignore[arg-type]


def test_a_fault_names_the_bound_and_the_figure() -> None:
    assert outcome().faults == ()
    worse = Errors(Worst(2e-10, "loss"), Worst(math.inf, "a.weight"), Worst(3e-9, "b.weight"))
    assert outcome(exact=worse).faults == (
        "float64 loss: error 2.0e-10 of loss, the bound is 1e-10",
        "float64 gradient: error inf of a.weight, the bound is 1e-10",
        "float64 parameter after the last step: error 3.0e-09 of b.weight, the bound is 1e-09",
    )
    assert outcome(sharded=Distance(1.3e-5, math.inf)).faults == (
        "bf16-mixed loss: 1.30e-05 from float32, 1.30 times one device's 1.00e-05, the bound is 1.2 times",
        "bf16-mixed gradients: inf from float32, inf times one device's 1.00e-02, the bound is 1.2 times",
    )
    unknown = Distance(1e-5, math.inf)
    assert len(outcome(sharded=unknown, single=unknown).faults) == 1, "what can't be compared isn't equal"
    stale = outcome(stale=True, sharded=None, single=None, exact=worse)
    assert len(stale.faults) == 3 and outcome(problem="LaunchError: …").faults == ("LaunchError: …",)


def test_distances_are_relative_over_all_batches() -> None:
    wide = Steps((3.0, 4.0), ({"a": torch.tensor([3.0, 0.0])}, {"a": torch.tensor([0.0, 4.0])}))
    found = Steps((3.0, 4.5), ({"a": torch.tensor([3.0, 0.3])}, {"a": torch.tensor([0.4, 4.0])}))
    assert distance(wide, wide) == Distance(0.0, 0.0, (0.0, 0.0))
    assert distance(found, wide).loss == pytest.approx(0.1) and distance(found, wide).gradients == pytest.approx(0.1)
    missing = distance(Steps((3.0, math.nan), ({}, {"a": torch.tensor([0.0, 4.0])})), wide)
    assert missing.loss == missing.gradients == math.inf


def test_the_standard_error_is_that_of_repeated_samples() -> None:
    """Over many samples the logarithm of the ratio scatters as much as the jackknife says of each."""
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(400, 2, 32, generator=generator, dtype=torch.float64).abs()
    pairs = [[Distance(float(e.norm()), 0.0, tuple(e.tolist())) for e in sample] for sample in errors]
    logs = torch.tensor([math.log(a.loss / b.loss) for a, b in pairs])
    said = torch.tensor([standard_error(a, b) for a, b in pairs])
    assert float(logs.std()) == pytest.approx(float(said.mean()), rel=0.15)


def test_a_loss_has_to_be_further_than_chance_would_have_it() -> None:
    single = Distance(1.0, 1.0, (1.0,) * 16)
    alike = Distance(1.25, 1.0, (1.25,) * 16)
    assert [fault[:15] for fault in outcome(sharded=alike, single=single).faults] == ["bf16-mixed loss"]
    scattered = Distance(1.25, 1.0, (0.0,) * 8 + (1.25 * 2**0.5,) * 8)
    assert outcome(sharded=scattered, single=single).faults == ()


@pytest.mark.parametrize(("changed", "status"), [({}, 0), ({"problem": "ParallelismError: no"}, 1)])
def test_the_command_ends_with_a_status(
    changed: dict, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run", lambda cells: iter([outcome(**changed)] * len(cells)))
    assert command.main(["--system", "ddp", "--model", "llama"]) == status
    said = capsys.readouterr()
    assert ("| ddp | 4 | equal |" in said.out) == (status == 0)
    assert ("ddp × llama (dp=4): ParallelismError: no" in said.err) == (status == 1)


def test_the_document_has_every_figure() -> None:
    text = document([outcome(), outcome(exact=Errors(Worst(1.0, "loss"), Worst(0.0, ""), Worst(0.0, "")))])
    assert "1.0e-05 / 1.0e-05 = 1.00 ± 0.00" in text and "1 of 2 equal one device." in text
    assert "error 1.0e+00 of loss" in text
