"""What came with a model of transformers travels with its plan, and lies beside the weights that are saved."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2LMHeadModel

from autoplan.models.pretrained import origin_of, pretrained_files
from tests.support import zoo


def test_a_model_brings_its_configurations_and_the_tokenizer_s_files_of_its_folder(tmp_path: Path) -> None:
    zoo.gpt2(2).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("a b")
    (tmp_path / "notes.md").write_text("mine")
    model = GPT2LMHeadModel.from_pretrained(tmp_path).bfloat16()
    model.generation_config.max_length = 77
    found = pretrained_files(model)
    assert sorted(found) == ["config.json", "generation_config.json", "merges.txt", "tokenizer.json"]
    config = json.loads(found["config.json"])
    assert (config["architectures"], config["dtype"]) == (["GPT2LMHeadModel"], "bfloat16")
    assert json.loads(found["generation_config.json"])["max_length"] == 77
    assert model.config.architectures == ["GPT2LMHeadModel"]  # as it was


def test_a_model_made_anew_brings_its_configuration_alone() -> None:
    with torch.device("meta"):
        assert sorted(pretrained_files(zoo.gpt2(2))) == ["config.json", "generation_config.json"]


def test_another_model_brings_nothing() -> None:
    model = nn.Linear(2, 2)
    assert pretrained_files(None) == pretrained_files(model) == {}
    model.config = {"lr": 1}  # type: ignore[assignment]
    assert pretrained_files(model) == {}


def test_a_name_that_is_no_folder_and_not_in_the_cache_has_no_origin() -> None:
    class Config:
        _name_or_path = "nobody/nothing-of-that-name"

    assert origin_of(Config()) is None
    Config._name_or_path = "not a repository: at all"
    assert origin_of(Config()) is None
