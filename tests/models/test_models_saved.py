"""Folders of save_pretrained, and names of the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForSequenceClassification

from autoplan.errors import InputsError
from autoplan.models.named import resolve_model

SIZES = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 16}
ANOTHER = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=64, pad_token_id=0
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_folder_gives_its_class_its_sizes_and_its_weights(saved: Path, prefix: str) -> None:
    request = resolve_model(f"{prefix}{saved}", (), 4, 8)
    assert type(request.model) is GPT2LMHeadModel and request.model.config.n_embd == 32
    assert all(parameter.is_meta for parameter in request.model.parameters())
    assert request.example_inputs["input_ids"].shape == (4, 8)  # type: ignore[index]
    assert request.weights == saved and f"training starts from {saved}" in request.notes[0]


def test_the_class_is_the_one_that_was_saved_and_settings_are_taken(tmp_path: Path) -> None:
    LlamaForSequenceClassification(ANOTHER).save_pretrained(tmp_path)
    request = resolve_model(str(tmp_path), ["num_hidden_layers=2"])
    assert type(request.model) is LlamaForSequenceClassification and request.model.config.num_hidden_layers == 2


def test_without_safetensors_it_is_said(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    request = resolve_model(str(tmp_path))
    assert request.weights is None and "holds no safetensors" in request.notes[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "it can't be read"),
        (b"", "it can't be read"),
        (b"[]", "it names no model_type"),
        (b'{"model_type": "nope"}', "transformers can't read it"),
        (json.dumps({"model_type": "gpt2", "architectures": ["Mine"]}).encode(), "transformers has no class for Mine"),
        (json.dumps({"model_type": "gpt2", "auto_map": {}}).encode(), "none from a folder is run"),
    ],
)
def test_a_config_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputsError, match=said) as caught:
        resolve_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_setting_that_it_lacks_and_a_folder_without_a_config_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=r"has no 'n_layers'\. did you mean n_layer"):
        resolve_model(str(saved), ["n_layers=3"])
    with pytest.raises(InputsError, match=r"there is no config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(InputsError, match=f"give its folder: {saved}"):
        resolve_model(str(saved / "config.json"))


def test_a_name_of_the_hub_is_a_preset_or_names_the_nearest() -> None:
    request = resolve_model("hf:openai-community/gpt2", [f"{name}={size}" for name, size in SIZES.items()])
    assert type(request.model) is GPT2LMHeadModel and "is planned as hf:gpt2" in request.notes[0]
    with pytest.raises(InputsError, match=r"nothing is downloaded.* did you mean hf:llama-3-8b"):
        resolve_model("hf:meta-llama/Llama-3-9B")
    with pytest.raises(InputsError, match=r"'llama': this names no model\. write hf:llama"):
        resolve_model("llama")
