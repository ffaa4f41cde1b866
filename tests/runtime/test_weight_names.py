"""Weights of a model's inner part, of a model around it, and of old spellings are found, as from_pretrained does."""

from __future__ import annotations

from autoplan.runtime.weights.weight_names import WeightNames

LLAMA = ("model.embed.weight", "model.layers.0.q.weight", "model.norm.weight", "lm_head.weight")


def found(present: tuple[str, ...], wanted: tuple[str, ...]) -> dict[str, str | None]:
    names = WeightNames(present, wanted)
    return {name: names.find(name) for name in wanted}


def test_names_as_they_are() -> None:
    assert found((*LLAMA, "other"), LLAMA) == {name: name for name in LLAMA}


def test_weights_of_the_inner_part() -> None:
    inner = ("embed.weight", "layers.0.q.weight", "norm.weight")
    assert found(inner, LLAMA) == {**{f"model.{name}": name for name in inner}, "lm_head.weight": None}
    assert found((*inner, "lm_head.weight"), LLAMA)["lm_head.weight"] == "lm_head.weight"


def test_weights_of_a_model_around_it() -> None:
    inner = ("embed.weight", "layers.0.q.weight")
    assert found(LLAMA, inner) == {name: f"model.{name}" for name in inner}


def test_old_spellings() -> None:
    wanted = ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.bias", "bert.pooler.weight")
    present = ("embeddings.LayerNorm.gamma", "embeddings.LayerNorm.beta", "pooler.weight")
    assert found(present, wanted) == dict(zip(wanted, present, strict=True))


def test_another_model_s_weights_are_not_taken_for_its_own() -> None:
    assert set(found(("vit.embed", "vit.layer.0.weight"), LLAMA).values()) == {None}


def test_a_name_that_two_would_find_is_its_own() -> None:
    """timm's EVA has a parameter and a buffer of one name, the buffer in a module whose buffers aren't saved."""
    wanted = ("pos_embed", "rope.pos_embed", "head.weight")
    assert found(("pos_embed", "head.weight"), wanted) == {
        "pos_embed": "pos_embed", "rope.pos_embed": None, "head.weight": "head.weight"
    }  # fmt: skip
