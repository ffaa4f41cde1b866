"""Weights come from a state dict, a safetensors file, or a directory of them; each rank reads its own slices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from autoplan.errors import WeightsError
from autoplan.ir.start import RESETS, InitRecipe, Start
from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.program import Program
from autoplan.runtime.weights.loading import Safetensors, StateDict
from autoplan.trace.initialise import given, resets_recipe
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = (
    dict(dp=4, zero=3),
    dict(tp=2, dp=2, zero=1),
    dict(pp=2, tp=2),
)
Source = str | Mapping[str, Tensor]


def loaded(rank: int, world: int, plan: dict, source: Source) -> Mapping[str, Tensor]:
    with Program(tiny.spec(**plan), tiny.program(plan.get("pp", 1))) as program:
        program.load_weights(source)
        return dict(program.full_state_dict())


def state_dict() -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tiny.reference(3).state_dict().items()}


def one_file(folder: Path, tensors: dict[str, Tensor]) -> Path:
    tensors.pop("embed.weight")  # a file holds a tied parameter once, here under its other name
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def shards(folder: Path, tensors: dict[str, Tensor]) -> Path:
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:4]}, folder / "a.safetensors")
    save_file({name: tensors[name] for name in names[4:]}, folder / "b.safetensors")
    return folder


def shards_with_index(folder: Path, tensors: dict[str, Tensor]) -> Path:
    shards(folder, tensors)
    save_file({"layers.0.scale": torch.zeros(1)}, folder / "stale.safetensors")
    where = {name: ("a" if i < 4 else "b") + ".safetensors" for i, name in enumerate(sorted(tensors))}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def one_file_beside_another(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: torch.zeros_like(value) for name, value in tensors.items()}, folder / "consolidated.safetensors")
    return one_file(folder, tensors).parent


WRITTEN = (one_file, one_file_beside_another, shards, shards_with_index, None)


@pytest.mark.parametrize(
    ("plan", "write"),
    sampled(
        itertools.product(PLANS, WRITTEN),
        [*((PLANS[2], write) for write in WRITTEN), *((plan, shards_with_index) for plan in PLANS[:2])],
    ),
)
def test_what_is_loaded_is_what_was_given(
    pool: RankPool, tmp_path: Path, plan: dict, write: Callable[[Path, dict], Path] | None
) -> None:
    source: Source = state_dict() if write is None else str(write(tmp_path, state_dict()))
    found = pool.run(loaded, plan, source)[0]
    wanted = state_dict()
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def refused(rank: int, world: int, source: Source) -> tuple[str, bool]:
    """What was said, and whether everything was left as it was."""
    with Program(tiny.spec(pp=2, dp=2, zero=2), tiny.program(2)) as program:
        program.load_weights(tiny.reference().state_dict())
        before = dict(program.full_state_dict())
        try:
            program.load_weights(source)
        except WeightsError as error:
            after = dict(program.full_state_dict())
            return str(error), all(torch.equal(after[name], before[name]) for name in before)
        return "", False


def without(name: str) -> Callable[[dict], dict]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def reshaped(name: str, *shape: int) -> Callable[[dict], dict]:
    return lambda tensors: {**tensors, name: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("layers.1.scale"), "the state dict: it lacks the parameter layers.1.scale of shape (5,). give"),
        (without("layers.0.gate_up.weight"), "it lacks the parameter layers.0.gate_up.weight of shape (12, 5)"),
        (without("shift"), "it lacks the buffer shift of shape (5,)"),
        (reshaped("layers.0.down.weight", 5, 7), "layers.0.down.weight has shape (5, 7) there, the plan's model has"),
        (reshaped("shift", 4), "shift has shape (4,) there"),
    ],
)
def test_what_does_not_fit_is_named_on_every_rank_before_anything_changes(
    pool: RankPool, change: Callable[[dict], dict], said: str
) -> None:
    for text, kept in pool.run(refused, change(state_dict())):
        assert said in text
        assert kept


def make_model() -> nn.Module:
    """The program's model in float64, drawn under whatever seed there is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return tiny.Reference()
    finally:
        torch.set_default_dtype(before)


def of_seed(seed: int) -> Mapping[str, Tensor]:
    torch.manual_seed(seed)
    return make_model().state_dict()


def initialised(
    rank: int, world: int, plan: dict, recipe: InitRecipe | None, start: Start, arguments: dict
) -> tuple[str, Mapping[str, Tensor]]:
    spec = replace(tiny.spec(**plan), init=recipe, start=start)
    with Program(spec, tiny.program(plan.get("pp", 1))) as program:
        asked = {key: rank if value == "rank" else value for key, value in arguments.items()}
        try:
            program.init_weights(**asked)
        except WeightsError as error:
            return str(error), {}
        return "", dict(program.full_state_dict())


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_initial_values_are_those_of_the_user_s_function(pool: RankPool, plan: dict) -> None:
    made = given(make_model)
    said, found = pool.run(initialised, plan, made.recipe, made.start, {"seed": 5})[0]
    wanted = of_seed(5)
    assert said == "" and found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def test_resets_are_taken_only_where_they_are_asked_for(pool: RankPool) -> None:
    made = given(make_model().to("meta"))
    assert made.start.recipe == RESETS and "layers.0.scale" in made.start.unknown
    for said, _ in pool.run(initialised, PLANS[2], made.recipe, made.start, {"seed": 5}):
        assert said.startswith("init_weights(seed=5): nothing is known of the initial values of embed.weight, ")
        assert "plan the function that makes the model: autoplan.parallelize(make_model, ...)" in said
    arguments = {"seed": 5, "reset_parameters": True}
    said, found = pool.run(initialised, PLANS[2], made.recipe, made.start, arguments)[0]
    torch.manual_seed(5)
    wanted = make_model()
    torch.manual_seed(5)
    for module in wanted.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert said == "" and all(torch.equal(found[name], value) for name, value in wanted.state_dict().items())


def test_what_can_t_be_given_is_named_on_every_rank(pool: RankPool) -> None:
    recipe, start = resets_recipe(tiny.reference()), Start(name="Reference", recipe=RESETS)
    lacking = replace(recipe, tensors=tuple(t for t in recipe.tensors if t[0] != "layers.1.scale"))
    arguments = {"reset_parameters": True}
    for said, _ in pool.run(initialised, PLANS[2], lacking, start, arguments):
        assert said.startswith("layers.1.scale: no reset_parameters fills it")
    for said, _ in pool.run(initialised, PLANS[0], None, Start(), {}):
        assert said.startswith("init_weights(): nothing is known of the initial values of the model. call load_weights")
    stored = Start(name="Reference", stored=True)
    for said, _ in pool.run(initialised, PLANS[0], None, stored, {"seed": 3}):
        assert said.startswith("init_weights(seed=3): the model came with values of its own, and nothing is known of")
    for said, _ in pool.run(initialised, PLANS[0], None, stored, {}):
        assert said.startswith("init_weights(): this program wasn't loaded from a folder with values")


def unfilled(rank: int, world: int) -> list[str]:
    said = []
    with Program(tiny.spec(dp=world), tiny.program(1)) as program:
        for call in (program.step, program.evaluate):
            with pytest.raises(WeightsError) as error:
                call({})
            said.append(str(error.value))
    return said


def test_a_program_without_weights_neither_steps_nor_evaluates(pool: RankPool) -> None:
    for stepped, evaluated in pool.run(unfilled):
        assert stepped.startswith("program.step(batch): this program has no weights yet")
        assert "call program.init_weights(seed=0), load_weights" in stepped and "evaluate(batch): this" in evaluated


def test_ranks_that_ask_for_other_seeds_are_named(pool: RankPool) -> None:
    made = given(make_model)
    for said, _ in pool.run(initialised, PLANS[0], made.recipe, made.start, {"seed": "rank"}):
        assert said.startswith("init_weights: rank 0 asks for seed=0, rank 1 for seed=1. give the same")


def loaded_with_recipe(
    rank: int, world: int, made: tuple, transient: tuple[str, ...], tensors: dict[str, Tensor]
) -> tuple[str, Mapping[str, Tensor]]:
    spec = replace(tiny.spec(pp=2, dp=2), init=made[0], start=made[1], transient_buffers=transient)
    with Program(spec, tiny.program(2)) as program:
        try:
            program.load_weights(tensors)
        except WeightsError as error:
            return str(error), {}
        return "", {name: value.clone() for name, value in program.stages.buffers.items()}


def test_a_buffer_that_state_dicts_leave_out_is_made_by_the_recipe(pool: RankPool) -> None:
    """But a random one that they hold isn't drawn in its place."""
    made, tensors = given(make_model), without("shift")(state_dict())
    said, found = pool.run(loaded_with_recipe, (made.recipe, made.start), ("shift",), tensors)[0]
    assert said == "" and torch.equal(found["shift"], of_seed(0)["shift"])
    said, _ = pool.run(loaded_with_recipe, (made.recipe, made.start), (), tensors)[0]
    assert "it lacks the buffer shift of shape (5,)" in said


def test_a_folder_without_weights_is_named(pool: RankPool, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "lost.safetensors"}}))
    assert all("lost.safetensors is missing" in text and kept for text, kept in pool.run(refused, str(tmp_path)))
    assert all("no safetensors file" in text and kept for text, kept in pool.run(refused, str(tmp_path / "none")))


def test_a_box_is_read_from_a_file_as_from_memory(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(6, 8), "vector": torch.randn(5), "scalar": torch.randn(())}
    save_file(tensors, tmp_path / "w.safetensors")
    memory = StateDict(tensors)
    with Safetensors(tmp_path) as file:
        assert file.shape("matrix") == (6, 8) == memory.shape("matrix")
        assert set(file.names()) == set(memory.names()) == {"matrix", "vector", "scalar"}
        for name, part in (
            ("matrix", Part((1, 2), (3, 4))),
            ("matrix", Part((0, 7), (6, 1))),
            ("vector", Part((4,), (1,))),
            ("scalar", Part((), ())),
        ):
            found, wanted = torch.empty(part.shape), torch.empty(part.shape)
            file.read(name, part, found)
            memory.read(name, part, wanted)
            assert torch.equal(found, wanted) and torch.equal(wanted, tensors[name][part.slices])
