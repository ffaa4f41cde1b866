from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.errors import InputsError
from autoplan.models.named import resolve_model

SMALL = ["hidden_size=32", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=4", "vocab_size=96"]


def test_a_causal_model_lies_on_meta_with_labels_of_their_own() -> None:
    request = resolve_model("hf:llama", SMALL, batch=8, seq=16)
    assert type(request.model).__name__ == "LlamaForCausalLM"
    assert {p.device.type for p in request.model.parameters()} == {"meta"}
    assert request.model.config.num_hidden_layers == 2
    inputs = request.example_inputs
    assert isinstance(inputs, dict) and inputs["input_ids"] is not inputs["labels"]
    assert {name: tuple(t.shape) for name, t in inputs.items()} == {"input_ids": (8, 16), "labels": (8, 16)}


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [("bert", "BertForMaskedLM", SMALL), ("vit", "ViTForImageClassification", SMALL[:-1]),
     ("gpt2", "GPT2LMHeadModel", ["n_embd=32", "num_hidden_layers=2", "n_head=4", "vocab_size=96"]),
     ("t5", "T5ForConditionalGeneration", ["d_model=32", "d_ff=64", "num_layers=2", "vocab_size=96"])],
)  # fmt: skip
def test_a_model_type_trains_as_its_own_class(name: str, kind: str, settings: list[str]) -> None:
    assert type(resolve_model(f"hf:{name}", settings).model).__name__ == kind


def test_a_decoder_starts_with_a_token_that_there_is() -> None:
    small = ["d_model=32", "d_ff=64", "num_layers=1", "vocab_size=96"]
    assert resolve_model("hf:t5", small).model.config.decoder_start_token_id == 0
    assert resolve_model("hf:t5", [*small, "decoder_start_token_id=3"]).model.config.decoder_start_token_id == 3
    assert resolve_model("hf:bart", ["d_model=32", "vocab_size=96"]).model.config.decoder_start_token_id == 2


def test_a_plan_s_folder_under_the_model_s_name_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    with pytest.raises(InputsError, match=r"llama: there is no config\.json"):
        resolve_model("hf:llama", SMALL)
    (tmp_path / "llama" / "plan.json").write_text("{}")
    assert type(resolve_model("hf:llama", SMALL).model).__name__ == "LlamaForCausalLM"


def test_images_have_the_configured_size() -> None:
    inputs = resolve_model("hf:vit", [*SMALL[:-1], "image_size=32", "patch_size=8"], batch=4).example_inputs
    assert isinstance(inputs, dict)
    assert {k: tuple(t.shape) for k, t in inputs.items()} == {"pixel_values": (4, 3, 32, 32), "labels": (4,)}
    assert inputs_of_a_size_left_open() == (4, 3, 224, 224)


def inputs_of_a_size_left_open() -> tuple[int, ...]:
    small = ["embedding_size=8", "hidden_sizes=[8]", "depths=[1]"]
    inputs = resolve_model("hf:resnet", small, batch=4).example_inputs
    assert isinstance(inputs, dict)
    return tuple(inputs["pixel_values"].shape)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3-70b", 70_553_706_496), ("llama-3.1-405b", 405_853_388_800), ("t5-11b", 11_307_321_344),
        ("mixtral-8x7b", 46_702_792_704), ("mixtral-8x22b", 140_630_071_296), ("gpt-oss-20b", 20_914_757_184),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624), ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-ai/DeepSeek-V3", 671_026_404_352),
    ],
)
def test_a_preset_has_its_published_size(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in resolve_model(f"hf:{name}").model.parameters()) == parameters


def test_llama_3_keeps_its_rotary_base() -> None:
    assert resolve_model("hf:llama-3-70b").model.config.rope_parameters["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    ("text", "settings", "batch", "seq", "said"),
    [
        ("hf:lama", [], None, None, "hf:lama: transformers has no model of that type. did you mean hf:"),
        ("hf:llama", ["hiden=2"], None, None, "hiden=2: the configuration of hf:llama has no 'hiden'"),
        ("hf:gpt2", [], 2, 4096, "--seq 4096: hf:gpt2 has positions for 1024. add --config max_"),
        ("hf:llama", SMALL, None, 16, "--seq 16: a sequence without a batch says no shape"),
        ("hf:llama", SMALL, 0, 16, "--batch 0: a size is at least 1"),
        ("hf:musicgen", [], None, None, "hf:musicgen: transformers can't build it from its configuration alone"),
        ("hf:clap", [], None, None, "hf:clap: only language models (causal, masked, sequence to sequence) and image"),
    ],
)
def test_a_mistake_is_named(text: str, settings: list[str], batch: int | None, seq: int | None, said: str) -> None:
    with pytest.raises(InputsError) as error:
        resolve_model(text, settings, batch, seq)
    assert str(error.value).startswith(said)
