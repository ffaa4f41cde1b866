"""Public configurations by name: as many parameters as their publishers count, under the names that people type."""

from __future__ import annotations

import pytest

from autoplan.errors import InputsError
from autoplan.models.huggingface import build, known_name
from autoplan.models.presets import PRESETS, preset_name

# recalled of each model's page on the hub, no document at hand; those of a paper alone in round numbers, below
COUNTED = {
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3.1-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
    "llama-3.1-70b": 70_553_706_496, "llama-3.3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320,
    "phi-4": 14_659_507_200, "olmo-2-7b": 7_298_617_344, "bloom-176b": 176_247_271_424,
    "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
}  # fmt: skip
IN_BILLIONS = {
    "deepseek-v3": 671, "kimi-k2": 1026, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "gpt3-175b": 174.6,
    "bert-large": 0.335, "t5-11b": 11.3, "vit-22b": 21.8,
}  # fmt: skip


def test_each_has_as_many_parameters_as_its_publisher_counts() -> None:
    assert COUNTED.keys() | IN_BILLIONS.keys() == PRESETS.keys()
    for name in PRESETS:
        found = sum(parameter.numel() for parameter in build(name, (), None, None)[0].parameters())
        if name in COUNTED:
            assert found == COUNTED[name], name
        else:
            assert found / 1e9 == pytest.approx(IN_BILLIONS[name], rel=0.003), name


@pytest.mark.parametrize(
    ("hub", "own"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"), ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"), ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"), ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"), ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("openai-community/gpt2-xl", "gpt2-xl"), ("google-bert/bert-base-uncased", "bert"),
        ("google-bert/bert-large-uncased", "bert-large"), ("bigscience/bloom", "bloom-176b"),
        ("allenai/OLMo-2-1124-7B", "olmo-2-7b"),
        ("google/vit-base-patch16-224", "vit"), ("unknown/Model-7B", "model-7b"),
    ],
)  # fmt: skip
def test_the_hub_s_name_stands_for_it(hub: str, own: str) -> None:
    assert preset_name(hub) == own


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-v0.1", "google-bert/bert-base-cased", "bert-large-cased"])
def test_another_release_of_other_sizes_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(InputsError, match="did you mean"):
        known_name(name)


def test_what_stands_for_none_names_the_nearest() -> None:
    with pytest.raises(InputsError, match="did you mean hf:qwen3-8b"):
        known_name("Qwen/Qwen3-9B")
    with pytest.raises(InputsError, match=r"try one of llama-2-7b, .*, …;"):
        known_name("xyzzyxyzzy")
