"""Nothing is silently other than on one device, nothing is lost, and no attack ends in a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.attacks.__main__ import outcome
from tests.attacks.attack import Attack, Pools
from tests.attacks.catalog import ATTACKS


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with contextlib.ExitStack() as stack:
        yield Pools(stack, {})


# Of each of these families the quick run has another: an evaluation of short batches by rows, by stages and of a mean;
# one between backward and update; a refusal of a batch and of a model; a checkpoint pruned, replaced and damaged; seeds
# that differ; a model verified; weights and groups that other quick tests save and close; ranks of
# tensor parallelism that disagree. Disagreements that tests/runtime/test_agreement.py holds to the same words, damages
# that tests/runtime/test_checkpoint_files.py passes over, and numbers of rows that
# tests/equality/test_evaluation.py evaluates are quick there.
KIN = {
    "loop": (
        "no decay on biases and scales", "one of two patterns that matches nothing",
        "change the module between plan and export", "evaluate a batch whose labels are all ignored",
        "evaluate a plan whose model nobody looked at",
        "evaluate a program made by hand", "evaluate a short batch under the root of a mean",
        "evaluate a single row of a model that squeezes", "evaluate after updates under local SGD",
        "evaluate each rank's own rows of a whole batch", "evaluate inputs and targets of different lengths",
        "evaluate uneven rows of each rank", "evaluate a model with stochastic depth",
        "evaluate a short batch of a loss between rows", "evaluate a short batch whose first rows are ignored",
        "evaluate a short batch with weights of classes", "evaluate a single row of a model that takes none",
        "evaluate after updates under PipeDream-2BW", "evaluate after updates under ZeRO-3",
        "evaluate batch norm that keeps no statistics", "evaluate before the first step",
        "evaluate between backward and update, batch norm", "evaluate between backward and update, dropout",
        "evaluate between backward and update, ZeRO-3", "evaluate fewer rows under a loss over x.shape[0]",
        "evaluate integers where floats belong", "evaluate more rows than planned", "evaluate no rows",
        "evaluate other rows on a tensor-parallel peer", "evaluate short batches on tensor-parallel ranks",
        "evaluate the same short batch on all ranks", "evaluate two whole batches at once",
        "evaluate what isn't finite", "evaluate wider rows", "evaluate without targets",
        "an update after zero_grad", "evaluate 1, 3, 5 and 7 rows of a mean", "evaluate short batches on two stages",
        "a plain step after three that add up", "a state that is loaded twice", "a wrong batch while adding up",
        "an overflow in one of three batches", "three batches before an update", "two steps without an update",
    ),
    "checkpoint": (
        "a bit of tensors.json flipped", "a checkpoint in fp64 loaded into a plan in fp32",
        "a pickle as tensors.json", "a pipe as a shard",
        "another extra in state.json", "another schedule in the plan", "another step in state.json",
        "autoplan checkpoint verify, a bit flipped", "load of the folder of all steps",
        "save beside a user's folder step-1.old", "save over a checkpoint that holds the user's scores.json",
        "save where a damaged checkpoint stands", "a bit flipped that this rank doesn't read",
        "a checkpoint by a link", "a checkpoint under another name",
        "a pickle as .metadata", "another weight_decay in the plan",
        "extra changed while an asynchronous save runs", "keep=1 beside another run's step-1",
        "keep=1 beside a link to another run's step-1", "keep=1 beside a manifest that names files elsewhere",
        "keep=2 after going back from step 5 to 2", "ranks load different checkpoints", "save onto a symbolic link",
        "state.json of another checkpoint", "two groups loaded into one", "the latest of two damaged",
        "a shard is gone",
    ),
    "initialisation": (
        "a file's function on the command line", "a fine-tuned transformers model",
        "what_if of a folder, exported elsewhere", "a model that sets its own values, as a class", "a second export",
        "a seed for a model with values", "a seed for a module on the meta device", "each rank another seed",
        "fork_rng in the function", "reset_parameters of a recorded function", "another plan's stored values",
        "the same, its errors caught", "values that depend on what was drawn", "the stored values removed",
    ),
    "files": ("a planned folder's weights removed", "programs closed in a process group of the user's"),
    "inference": (
        "ask an inference program for its optimizer", "count the optimizers of an inference program",
        "export a plan of the forward alone", "short batches on data-parallel ranks", "verify: the same, forward alone",
    ),
    "model": ("verify: the same with dropout",),
    "ranks": (
        "one batch behind, ZeRO-3", "one batch behind, pipeline", "evaluate on one rank, ZeRO-3",
        "evaluate on one stage, pipeline", "a short batch as own rows, 4 data ranks",
        "a loader that shuffles by itself", "one label of one rank differs", "tensor-parallel peers with other rows",
        "pipeline peers with other rows", "a short batch as own rows, 2 data ranks",
        "a sampler that knows of half the ranks", "whole batches on some ranks, rows on others",
        "whole tokens with own labels", "own rows that are said to be whole", "a wrong shape on one rank",
        "a text for a tensor on one rank", "a rank at another step", "accumulate=True on one rank",
        "zero_grad on one rank", "equal rows that are meant",
    ),
    "weights": ("EMA weights beside",),
}  # fmt: skip


def cases() -> list:
    unknown = [name for names in KIN.values() for name in names if name not in {attack.name for attack in ATTACKS}]
    assert not unknown, f"{unknown} is no attack"
    return [
        pytest.param(attack, id=f"{attack.item}: {attack.name}", marks=[pytest.mark.slow] if is_slow(attack) else [])
        for attack in ATTACKS
    ]


def is_slow(attack: Attack) -> bool:
    return attack.slow or attack.name in KIN.get(attack.item, ())


@pytest.mark.parametrize("attack", cases())
def test_an_attack_is_refused_or_does_no_harm(attack: Attack, pools: Pools) -> None:
    kind, seen = outcome(attack, pools)
    assert kind == "passed", f"{kind}: {seen}; it guards against: {attack.guards}"


def test_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
