"""Each kind of plan under torchrun itself: four processes, gloo, the exported folders, the user's interface.

One start runs all plans of a group. The quick one has a plan of each kind of process group: all ranks, pairs, and
neighbours in a pipeline. In the quick run torchrun's agent forks its ranks, in the full one it starts interpreters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autoplan.export.folder import write_folder
from autoplan.verify.compare import FLOAT64, Run, gradient_error, loss_error, zero_gradients
from autoplan.verify.reference import train_eagerly
from autoplan.verify.variants import in_float64
from tests.bench import correctness
from tests.support import zoo
from tests.support.forked import run_script
from tests.support.launched_processes import torchrun
from tests.support.sampling import sampled
from tests.support.shared_plans import SharedPlans

GROUPS = {"quick": ("zero3", "tp=2 pp=2")}
GROUPS["rest"] = tuple(system for system in correctness.SYSTEMS if system not in GROUPS["quick"])
FORKS = [("forks", "quick", system) for system in GROUPS["quick"]]
CELLS = FORKS + [("torchrun", group, system) for group, systems in GROUPS.items() for system in systems]
FORKING = "import sys; from tests.support.torchrun_script import launch_forks; launch_forks(4, *sys.argv[1:])"


def exported(root: Path, shared_plans: SharedPlans, systems: Iterable[str]) -> dict[str, Path]:
    folders = {}
    for number, system in enumerate(systems):
        record = in_float64(correctness.record_for("llama", system, shared_plans))
        folders[system] = write_folder(record, root / f"plan{number}", system, {})
    return folders


@pytest.fixture(scope="module")
def reference() -> Run:
    module, batch, loss_fn = zoo.small("llama")
    training = correctness.TRAINING.with_precision("fp64")
    assert isinstance(batch, dict)
    return train_eagerly(module.double(), loss_fn, batch, training, 1)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, shared_plans: SharedPlans) -> Callable[[str, str], dict[str, Path]]:
    """Of a launcher and a group: what each plan left behind. The group is started when it is first asked for."""
    return functools.cache(lambda launcher, group: started(launcher, GROUPS[group], tmp_path_factory, shared_plans))


def started(
    launcher: str, systems: Iterable[str], tmp_path_factory: pytest.TempPathFactory, shared_plans: SharedPlans
) -> dict[str, Path]:
    folders = exported(tmp_path_factory.mktemp("folders"), shared_plans, systems)
    results = tmp_path_factory.mktemp("results")
    weights = results / "weights.safetensors"
    state = zoo.small("llama")[0].double().state_dict()
    save_file({name: value.clone().contiguous() for name, value in state.items()}, weights)
    batch = zoo.batch_of("llama")
    assert isinstance(batch, dict)
    save_file({name: value.contiguous() for name, value in batch.items()}, results / "batch.safetensors")
    given = [str(results / "batch.safetensors"), str(weights), str(results), *map(str, folders.values())]
    if launcher == "forks":
        (script := results / "forks.py").write_text(FORKING)
        done = run_script(script, given)
    else:
        done = torchrun(4, "tests/support/torchrun_script.py", *given)
    assert done.returncode == 0, done.stderr[-4000:]
    return {system: results / f"{folder.name}.pt" for system, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "group", "system"), sampled(CELLS, FORKS))
def test_a_plan_of_each_kind_equals_one_device(launcher, group, system, ran, reference):
    found = torch.load(ran(launcher, group)[system])
    run = Run((float(found["loss"]),), found["gradients"], found["state"])
    zero = zero_gradients(reference)
    assert loss_error(run, reference).error <= FLOAT64.loss
    assert gradient_error(run, reference, zero).error <= FLOAT64.gradients
    assert found["state"].keys() == reference.parameters.keys()


@pytest.mark.slow  # test_runtime_launch.py has the same error without torchrun
def test_the_wrong_number_of_processes_is_told_without_a_traceback(tmp_path, shared_plans):
    folder = exported(tmp_path, shared_plans, ["ddp"])["ddp"]
    done = torchrun(2, str(folder / "train.py"), "--steps", "1")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "4 processes" in line or "--nproc-per-node 4" in line]
    assert said, done.stderr[-3000:]
    assert "train.py\", line" not in done.stderr
