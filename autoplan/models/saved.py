"""A model that ``save_pretrained`` wrote: its class and sizes from config.json, its weights where training starts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.utils import HFValidationError
from torch import nn
from transformers import AutoConfig

from autoplan.arguments.values import parse_settings
from autoplan.errors import InputsError
from autoplan.models.huggingface import TASKS, inputs

CONFIG = "config.json"


def saved_folder(text: str) -> Path | None:
    """The folder that a text names, or a model's of the hub in its cache on this machine; None where it is neither.

    InputsError for a folder without a config.json.
    """
    if not text:
        raise InputsError("hf:", "it names no model", "give hf:NAME, as in hf:llama")
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise InputsError(text, f"there is no {CONFIG}", "give a folder that save_pretrained wrote")
        return path
    if text.count("/") != 1:
        return None
    try:
        cached = try_to_load_from_cache(text, CONFIG)
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def build_saved(
    folder: Path, settings: Sequence[str], batch: int | None, seq: int | None
) -> tuple[nn.Module, dict | None, Path | None]:
    """The model on the meta device, its inputs for one step (None without a batch), and where its weights are.

    settings  "KEY=VALUE" of the configuration, in place of the file's
    The folder is None again where it holds no safetensors. InputsError for a folder whose configuration can't be read,
    or whose class isn't one of transformers'.
    """
    config = configuration(folder, settings)
    made = class_of(folder, config)
    try:
        with torch.device("meta"):
            model = made(config)
    except Exception as error:
        cause = f"transformers refuses its {CONFIG}: {first_line(error)}"
        raise InputsError(folder, cause, "mend the file, or --config") from error
    weights = folder if any(folder.glob("*.safetensors")) else None
    return model, None if batch is None else inputs(str(folder), model, batch, seq), weights


def configuration(folder: Path, settings: Sequence[str]) -> Any:
    """The configuration of a folder with the settings in place."""
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputsError(folder / CONFIG, f"it can't be read: {error}", "save the model again") from None
    if not isinstance(said, dict) or "model_type" not in said:
        raise InputsError(folder / CONFIG, "it names no model_type", "give a folder that save_pretrained wrote")
    if "auto_map" in said:
        cause = "the model's code isn't transformers' own, and none from a folder is run"
        raise InputsError(folder, cause, "give it as path/to/file.py:make_model")
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        given = parse_settings(settings, config.to_dict(), f"the configuration in {folder}")
        return AutoConfig.from_pretrained(str(folder), local_files_only=True, **given) if given else config
    except InputsError:
        raise
    except Exception as error:
        cause = f"transformers can't read it: {first_line(error)}"
        raise InputsError(folder / CONFIG, cause, "save the model again") from error


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def class_of(folder: Path, config: Any) -> Any:
    """The class that the folder was saved from, else the one that its type trains as."""
    named = getattr(config, "architectures", None) or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise InputsError(folder / CONFIG, f"its architectures are no list of names: {named!r}"[:200], "save it again")
    known = [name for name in named if is_model(getattr(transformers, name, None))]
    if known:
        return getattr(transformers, known[0])._from_config
    if not named:
        for mapping, auto in TASKS:
            if config.model_type in mapping:
                return auto.from_config
    cause = f"transformers has no class for {', '.join(named) or config.model_type}"
    raise InputsError(folder, cause, "give it as path/to/file.py:make_model")


def is_model(found: object) -> bool:
    """Whether something of transformers' own is a model's class; a folder may name anything."""
    return isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
