"""A cluster as a mapping, or as a .toml file that holds one."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplan.errors import ClusterError
from cost_models.hardware import calibrated_on

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEEDED = ("nodes", "devices_per_node", "device")
KEYS = (*NEEDED, "groups", "memory_gb", "network", "node", "levels", "bandwidth", "memory_margin")


def read_file(path: Path) -> dict[str, Any]:
    """What a .toml says: of a cluster, or, of a device's profile that was calibrated, of the cluster it was calibrated
    on. Profiles and fabrics that it names by their paths are looked for beside it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(path, f"can't be read ({error.strerror})", "Give the path of a cluster's .toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(path, f"is not TOML: {error}", "Mend the file there") from error
    if "peak" in data:
        return _calibrated(path)
    return checked({key: _beside(path, value) for key, value in data.items()}, str(path))


def checked(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A mapping that says what a cluster needs, and nothing else."""
    lacking = [] if data.get("groups") else [key for key in NEEDED if key not in data]
    if lacking:
        remedy = f"Give {', '.join(NEEDED)}, or groups of them, and, if wanted, {', '.join(KEYS[4:])}"
        raise ClusterError(where, f"lacks {', '.join(lacking)}", remedy)
    unknown = [str(key) for key in data if key not in KEYS]
    if unknown:
        cause = f"has {', '.join(unknown)}, which are not parts of a cluster"
        raise ClusterError(where, cause, f"Use {', '.join(KEYS)}")
    return dict(data)


def _calibrated(path: Path) -> dict[str, Any]:
    counts = calibrated_on(path)
    if counts is None:
        cause = "is a device's profile that doesn't say what cluster it was calibrated on"
        raise ClusterError(path, cause, f'Say how many there are: "4x8 {path}"')
    return {"nodes": counts[0], "devices_per_node": counts[1], "device": str(path)}


def _beside(path: Path, value: Any) -> Any:
    """The value with every path of a .toml in it made relative to the file's folder instead of the current one."""
    if isinstance(value, str) and value.endswith(".toml"):
        return str(path.parent / value)
    if isinstance(value, dict):
        return {key: _beside(path, inner) for key, inner in value.items()}
    return [_beside(path, inner) for inner in value] if isinstance(value, list) else value
