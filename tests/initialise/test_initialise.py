"""The recipe: bit for bit what the constructor makes, a parameter at a time, without the model."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from autoplan.errors import WeightsError
from autoplan.ir import codec
from autoplan.ir.start import InitRecipe
from autoplan.trace.initialise import init_model, record, replay
from tests.support import zoo

torch.set_num_threads(1)
CONSTRUCTED = ("llama", "gpt2", "bert", "vit")


def seeded(name: str, seed: int) -> nn.Module:
    """What the user gets: the constructor under a seed, or resets under it where there is no configuration."""
    torch.manual_seed(seed)
    module = zoo.MODELS[name]()
    if name not in CONSTRUCTED:
        torch.manual_seed(seed)
        for child in module.modules():
            if hasattr(child, "reset_parameters"):
                child.reset_parameters()
    return module


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_replay_is_the_constructor_bit_for_bit(name: str) -> None:
    recipe = record(zoo.small(name, device="meta")[0])
    assert recipe.missing == ()
    expected = tensors(seeded(name, 7))
    got = dict(replay(recipe, 7))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], value) for key, value in expected.items())


def test_a_recorded_recipe_survives_json() -> None:
    recipe = record(zoo.small("vit", device="meta")[0])
    again = codec.decode(InitRecipe, codec.encode(recipe), "recipe")
    assert again == recipe


def test_only_what_is_asked_for() -> None:
    recipe = record(zoo.small("llama", device="meta")[0])
    name = "model.layers.2.mlp.up_proj.weight"
    ((found, value),) = replay(recipe, 3, [name])
    assert found == name and torch.equal(value, tensors(seeded("llama", 3))[name])


@pytest.mark.parametrize("name", ["llama", "vit", "mlp"])
def test_torchs_own_generator_is_left_alone(name: str) -> None:
    module = zoo.small(name)[0]
    before = torch.get_rng_state()
    list(replay(record(module), 3))
    init_model(module, 3)
    assert torch.equal(torch.get_rng_state(), before)


def elements_alive() -> int:
    return sum(t.numel() for t in gc.get_objects() if type(t) is torch.Tensor)


def test_one_parameter_is_held_at_a_time() -> None:
    module = zoo.small("llama", device="meta")[0]
    recipe = record(module)
    gc.collect()
    gc.freeze()  # what other tests hold isn't looked through for every parameter: that took a minute
    try:
        assert elements_alive() == 0
        most, total = 0, 0
        for _, value in replay(recipe, 0):
            most = max(most, elements_alive())
            total += value.numel()
    finally:
        gc.unfreeze()
    assert 0 < most <= 2 * max(p.numel() for p in module.parameters()) < total / 4


@pytest.mark.parametrize("name", zoo.NAMES)
def test_init_model_is_the_reference_on_one_device(name: str) -> None:
    module, batch, loss_fn = zoo.small(name, device="meta")
    made, expected = init_model(module, 5), seeded(name, 5)
    assert all(torch.equal(value, tensors(expected)[key]) for key, value in tensors(made).items())
    assert not any(t.is_meta for t in tensors(made).values()) and made.training == module.training
    if name == "gpt2":
        assert made.lm_head.weight is made.transformer.wte.weight  # type: ignore[union-attr]
    values = batch if isinstance(batch, dict) else {}
    loss = made(**values).loss if values else loss_fn(made(batch[0]), batch[1])  # type: ignore[index,misc]
    assert torch.isfinite(loss)


class Own(nn.Module):
    """A parameter that no reset fills, and a buffer of values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 3.0))
        self.register_buffer("table", torch.tensor([1.0, 2.0, 5.0]))


def test_what_nothing_fills_keeps_its_values_or_is_an_error() -> None:
    module = Own()
    assert record(module).missing == ("scale",)
    made = init_model(module, 0)
    assert torch.equal(made.scale, module.scale) and torch.equal(made.table, module.table)  # type: ignore[arg-type]
    with torch.device("meta"):
        hollow = Own()
    with pytest.raises(WeightsError, match="scale: it is on the meta device"):
        init_model(hollow, 0)


class Initialised(nn.Module):
    """Every kind of draw that torch.nn.init has."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.empty(20, 30) for _ in range(9))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fills = (
            nn.init.xavier_normal_, nn.init.kaiming_uniform_, nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.eye_,
            nn.init.dirac_, nn.init.ones_, nn.init.xavier_uniform_,
        )  # fmt: skip
        with torch.no_grad():
            for parameter, fill in zip(self.w, fills, strict=False):
                fill(parameter.view(20, 30, 1) if fill is nn.init.dirac_ else parameter)
            self.w[8].copy_(torch.randn(30, 20).t() * 0.5)
            self.w[8][3].zero_()


def test_every_kind_of_initialisation() -> None:
    with torch.device("meta"):
        module = Initialised()
    torch.manual_seed(11)
    expected = Initialised()
    torch.manual_seed(11)
    expected.reset_parameters()
    recipe = record(module)
    assert recipe.missing == ()
    got = dict(replay(recipe, 11))
    for name, value in expected.named_parameters():
        assert torch.equal(got[name], value), name
