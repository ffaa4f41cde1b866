"""What is handed over to be planned, and where training then starts from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from autoplan.errors import InputsError, WeightsError
from autoplan.ir.start import CONSTRUCTOR, FACTORY, RESETS
from autoplan.trace.initialise import check_given, given, init_model, is_random, recipe_check, replay
from tests.attacks import initial_models as made
from tests.starts.nanogpt import GPT, GPTConfig
from tests.support import zoo


def seeded(make: Callable[[], nn.Module], seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return dict(recipe_check.named_tensors(make()))


def nanogpt() -> GPT:
    return GPT(GPTConfig())


def test_nanogpt_begins_as_its_author_has_it() -> None:
    """Not at the standard deviation of nn.Embedding's own reset, which is 1."""
    found = given(nanogpt)
    values = dict(replay(found.recipe, 1234))
    assert 0.015 < float(values["transformer.wpe.weight"].std()) < 0.025
    assert 0.006 < float(values["transformer.h.0.mlp.c_proj.weight"].std()) < 0.014
    for name, value in seeded(nanogpt, 1234).items():
        assert torch.equal(values[name], value), name


@pytest.mark.parametrize(
    "make",
    [
        partial(made.changed, made.in_place), partial(made.changed, made.seeded), partial(made.changed, made.forked),
        made.halved, partial(made.Own, True), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), lambda: nn.LSTM(4, 4, 2),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False),
        lambda: nn.MultiheadAttention(8, 2).double(),
    ],
)  # fmt: skip
def test_a_function_is_replayed_bit_for_bit_under_any_seed(make: Callable[[], nn.Module]) -> None:
    found = given(make)
    assert found.start.recipe == FACTORY and found.start.compared and found.start.unknown == ()
    for seed in (0, 77):
        values = dict(replay(found.recipe, seed))
        for name, value in seeded(make, seed).items():
            assert recipe_check.same_bits(values[name], value), name


def test_a_complex_buffer_and_one_that_is_not_a_number() -> None:
    def make() -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))
        model.register_buffer("never", torch.full((3,), float("nan")))
        return model

    found = given(make)
    assert found.start.compared and not is_random(found.recipe, "turns") and is_random(found.recipe, "weight")


def test_a_module_s_values_are_the_start_and_its_resets_no_more_than_a_record() -> None:
    module = nanogpt()
    found = given(module)
    assert found.module is module and found.start.stored and not found.start.repeats
    assert (found.start.recipe, found.start.unknown) == (RESETS, ())
    copied = init_model(module, 5)
    assert copied is not module and all(
        torch.equal(one, other) for one, other in zip(copied.parameters(), module.parameters(), strict=True)
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transformers_model_is_made_again_by_its_class(device: str) -> None:
    found = given(zoo.small("gpt2", device=device)[0])
    assert (found.start.recipe, found.start.compared) == (CONSTRUCTOR, True)
    assert found.start.name == "GPT2LMHeadModel(config)" and found.start.stored == (device == "cpu")


def test_a_transformers_model_in_bfloat16_is_drawn_in_it() -> None:
    config = zoo.llama(2).config
    with torch.device("meta"):
        model = type(zoo.llama(2))._from_config(config, dtype=torch.bfloat16)
    found = given(model)
    assert found.start.compared
    torch.manual_seed(3)
    wanted = type(model)._from_config(config, dtype=torch.bfloat16)
    values = dict(replay(found.recipe, 3))
    assert all(torch.equal(values[name], value) for name, value in wanted.named_parameters())


def test_a_constructor_that_gives_other_values_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoplan.trace.initialise.handed.differing", lambda *given: "lm_head.weight")
    found = given(zoo.small("gpt2", device="meta")[0])
    assert not found.start.repeats and "lm_head.weight came out otherwise" in found.start.why
    assert "transformer.wte.weight" in found.start.unknown


def test_a_replay_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is at fault: here the replay itself, by one unit in the last place of one parameter."""

    def off(recipe: object, seed: int, names: object = None) -> object:
        for name, value in replay(recipe, seed, names):  # type: ignore[arg-type]
            yield name, value.nextafter(value + 1) if name == "transformer.wpe.weight" else value

    monkeypatch.setattr(recipe_check, "replay", off)
    with pytest.raises(WeightsError, match=r"transformer\.wpe\.weight of nanogpt\(\): run twice under one seed"):
        given(nanogpt)


def test_a_large_model_is_recorded_and_not_made() -> None:
    found = given(partial(nn.Sequential, *[]))
    assert found.start.compared and not found.start.stored
    large = given(lambda: nn.Sequential(nn.Linear(2**15, 2**15), nn.Linear(4, 4)))
    assert large.start.recipe == FACTORY and not large.start.compared
    assert all(parameter.is_meta for parameter in large.module.parameters())


def test_a_large_model_that_can_t_be_made_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structure comes from the recording, unless that holds tensors that nobody computed."""
    monkeypatch.setattr(recipe_check, "MOST_ELEMENTS", 8)

    def rates(keep: bool) -> nn.Module:
        model = nn.Linear(4, 4)
        model.rate = torch.linspace(0, 1, 3)[1].item()
        if keep:
            model.noise = torch.randn(4)
        return model

    found = given(partial(rates, False))
    assert found.module.rate == 0.5 and found.module.weight.is_meta and found.start.recipe == FACTORY
    with pytest.raises(InputsError, match=r"rates\(\): its model can't be made on the meta device, and not compared"):
        given(partial(rates, True))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: 3, r"the function\(\): it returns int. return a torch.nn.Module"),
        (GPT, r"GPT\(\): it is called without arguments: missing a required argument: 'config'. give functools"),
        (partial(made.changed, lambda model: 1 / 0), r"changed\(\): ZeroDivisionError: division by zero \(.*line"),
    ],
)
def test_what_makes_no_module_is_told(make: Callable, said: str) -> None:
    with pytest.raises(InputsError, match=said):
        given(make)


def test_what_is_neither_module_nor_function_is_refused() -> None:
    with pytest.raises(InputsError, match=r"a model of type int: it is no torch\.nn\.Module, nor a function that"):
        check_given(3)
