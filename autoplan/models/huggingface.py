"""Hugging Face models by name, built on the meta device from a configuration; nothing is downloaded."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from autoplan.arguments.keywords import nearest
from autoplan.arguments.values import parse_settings
from autoplan.errors import InputsError
from autoplan.models.inputs import hf_inputs
from autoplan.models.presets import PRESETS, preset_name

NAMED = 8  # presets, where nothing is near
# the class that a model type trains as: the first mapping that has it
TASKS: tuple[tuple[Mapping[str, object], Any], ...] = (
    (MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, AutoModelForImageClassification),
    (MODEL_FOR_MASKED_LM_MAPPING_NAMES, AutoModelForMaskedLM),
    (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM),
    (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, AutoModelForSeq2SeqLM),
)


def build(name: str, settings: Sequence[str], batch: int | None, seq: int | None) -> tuple[nn.Module, dict | None]:
    """The model on the meta device, and its inputs for one step (None where no batch is given).

    name      a model type ("llama", "gpt2", "bert", "vit", "t5") or a preset ("llama-3-70b")
    settings  "KEY=VALUE" of the configuration
    batch     rows of one step over all devices
    seq       tokens in a row; the configuration's longest where it isn't given
    Raises InputsError for an unknown name or setting, and a sequence that the model has no positions for.
    """
    kind, config = configuration(name, settings)
    for mapping, auto in TASKS:
        if kind in mapping:
            try:
                with torch.device("meta"):
                    model = auto.from_config(config)
            except AttributeError as error:  # a model of several parts, whose class for this task takes one of them
                cause = f"transformers can't build it from its configuration alone: {error}"
                raise InputsError(f"hf:{name}", cause, "give it as path/to/file.py:make_model") from error
            return model, None if batch is None else inputs(name, model, batch, seq)
    raise InputsError(
        f"hf:{name}",
        "only language models (causal, masked, sequence to sequence) and image classifiers are built by name",
        "give it as path/to/file.py:make_model",
    )


def configuration(name: str, settings: Sequence[str]) -> tuple[str, Any]:
    """(model type, configuration with the settings in place)."""
    known = known_name(name)
    kind, preset = PRESETS.get(known, (known, {}))
    plain = AutoConfig.for_model(kind)
    defaults = {**plain.to_dict(), **aliases_of(plain)}
    defaults["num_labels"] = plain.num_labels
    if getattr(plain, "rope_parameters", None):
        defaults["rope_theta"] = plain.rope_parameters.get("rope_theta", 10000.0)
    defaults |= started(plain) | {"attn_implementation": "sdpa"}
    given = parse_settings(settings, {**defaults, **preset}, f"the configuration of hf:{name}")
    try:
        return kind, AutoConfig.for_model(kind, **{**started(plain), **preset, **given})
    except Exception as error:
        raise InputsError(f"hf:{name} with {dict(given)}", f"transformers refuses: {error}", "mend --config") from error


def aliases_of(plain: Any) -> dict[str, object]:
    """The other names of a configuration's fields, of those that it has: one of several models lacks some."""
    return {alias: getattr(plain, own) for alias, own in plain.attribute_map.items() if hasattr(plain, own)}


def known_name(name: str) -> str:
    """The preset or model type that a name of the hub stands for; InputsError, with the nearest, where it is none."""
    found = given = preset_name(name)
    if not is_known(found):
        found = found.replace("-", "_")  # "DeepSeek-V3" of the model type deepseek_v3
    if is_known(found):
        return found
    near = nearest(given.removeprefix("meta-"), [*PRESETS, *CONFIG_MAPPING_NAMES])
    known = f"try one of {', '.join([*PRESETS][:NAMED])}, …"
    hint = f"did you mean {' or '.join(f'hf:{n}' for n in near)}" if near else known
    cause = "transformers has no model of that type"
    if "/" in name:
        cause = "nothing is downloaded, it isn't in the hub's cache here, and no preset has its configuration"
    raise InputsError(f"hf:{name}", cause, f"{hint}; or give a folder that save_pretrained wrote: hf:path/to/folder")


def is_known(name: str) -> bool:
    return name in PRESETS or name in CONFIG_MAPPING_NAMES


def started(plain: Any) -> dict[str, int]:
    """The token that a decoder's input begins with, where a class leaves it open: labels can't be shifted without. It
    is the padding's, as in T5's and most other published configurations."""
    if not plain.is_encoder_decoder or getattr(plain, "decoder_start_token_id", None) is not None:
        return {}
    return {"decoder_start_token_id": getattr(plain, "pad_token_id", None) or 0}


def inputs(name: str, model: Any, batch: int, seq: int | None) -> dict[str, torch.Tensor]:
    """The tensors of one step on the meta device; InputsError where the model has no positions for the sequence."""
    longest = getattr(model.config, "max_position_embeddings", None)
    rotary = getattr(model.config, "rope_parameters", None)
    if seq is not None and longest is not None and seq > longest and not rotary:
        raise InputsError(
            f"--seq {seq}", f"hf:{name} has positions for {longest}", f"add --config max_position_embeddings={seq}"
        )
    return hf_inputs(model, batch, seq)
