"""What came with a model of transformers beside its weights: its configuration, and its tokenizer's files.

They travel in an exported plan's folder, so that what is saved after training is again a folder for from_pretrained.
"""

import copy
import importlib
import tempfile
from pathlib import Path

from torch import nn

from autoplan.errors import InputsError

FOLDER = "pretrained"  # in an exported plan's
PATTERNS = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "vocab-*",
    "merges.txt", "*.tiktoken", "spiece.model", "sentencepiece*.model", "chat_template.*", "preprocessor_config.json",
    "processor_config.json", "image_processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


def pretrained_files(module: nn.Module | None) -> dict[str, bytes]:
    """The files by name; none of a module that isn't of transformers."""
    config = getattr(module, "config", None)
    if module is None or not hasattr(config, "to_json_string") or not hasattr(config, "save_pretrained"):
        return {}
    found: dict[str, bytes] = {}
    origin = origin_of(config)
    for pattern in PATTERNS if origin is not None else ():
        assert origin is not None
        found |= {path.name: path.read_bytes() for path in sorted(origin.glob(pattern)) if path.is_file()}
    return found | configurations(module, config)


def stored_files(folder: Path | None) -> dict[str, bytes]:
    """The files that stand beside an exported plan; none where it was never exported."""
    if folder is None or not (folder / FOLDER).is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted((folder / FOLDER).iterdir()) if path.is_file()}


def configurations(module: nn.Module, config: object) -> dict[str, bytes]:
    """config.json, and generation_config.json where the model generates, as its save_pretrained would write them."""
    own = copy.deepcopy(config)
    own.architectures = [type(module).__name__]  # type: ignore[attr-defined]
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if dtype is not None:
        own.dtype = str(dtype).removeprefix("torch.")  # type: ignore[attr-defined]
    generation = getattr(module, "generation_config", None)
    with tempfile.TemporaryDirectory(prefix="autoplan-pretrained-") as name:
        try:
            own.save_pretrained(name)  # type: ignore[attr-defined]
            if generation is not None:
                generation.save_pretrained(name)
        except (ValueError, OSError) as error:
            said = f"transformers doesn't save its configuration: {error}"
            raise InputsError(f"the configuration of {type(module).__name__}", said, "mend it there") from error
        return {path.name: path.read_bytes() for path in sorted(Path(name).glob("*.json"))}


def origin_of(config: object) -> Path | None:
    """The folder that a model was loaded from: one of the user's, or the hub's cache; None where it was made anew."""
    name = str(getattr(config, "_name_or_path", "") or "")
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name)
    try:
        hub = importlib.import_module("huggingface_hub")
        revision = getattr(config, "_commit_hash", None)
        cached = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except (ImportError, ValueError):  # not installed; not the name of a repository
        return None
    return Path(cached).parent if isinstance(cached, str) else None
