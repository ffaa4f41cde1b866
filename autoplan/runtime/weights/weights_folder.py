"""The folder that weights are saved into: what in it is ours, what would be mixed up with ours, and what is left alone.

Files are written into a folder of their own inside and moved to their places at the end, the manifest last. Until then
the manifest before tells what stood there: whoever reads a folder whose save was ended in between is told so.
"""

import fcntl
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from autoplan.errors import CheckpointError, WeightsError
from autoplan.runtime.checkpoint.state_json import sync_folder, write_synced
from autoplan.runtime.weights.manifest import MANIFEST, Manifest, described, read_manifest
from autoplan.runtime.weights.safetensors_files import ALONE, INDEX, SHARD, present

STAGING = ".autoplan-saving-"
ADAPTER = "adapter_config.json"  # with which from_pretrained puts an adapter's weights on top
ELSEWHERE = "give another folder, or move that out of the way"


class Typed(Protocol):
    """What is known of a file's tensors: the dtype and shape of each."""

    @property
    def tensors(self) -> tuple[tuple[str, tuple[torch.dtype, tuple[int, ...]]], ...]: ...


class SavePlace:
    """A folder during one save. ``claim`` and ``put`` are the first rank's.

    save  the save's identity, which every rank has to have
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.save = folder, uuid.uuid4().hex
        self.known: list[Manifest] = []
        self.lock: int | None = None

    @property
    def staging(self) -> Path:
        return self.folder / f"{STAGING}{self.save}"

    def claim(self, names: Sequence[str]) -> None:
        """Takes the folder for a save of these files. CheckpointError, and nothing is changed, where a file that isn't
        of an earlier save would be replaced, or read in the place of these, or where another save is at work."""
        with told(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.take_lock()
            left = [path for path in self.folder.glob(f"{STAGING}*") if path.is_dir() and not path.is_symlink()]
            self.known = self.manifests(left)
            self.check(names)
            if self.lock is not None:  # nobody else is at work here: they are of saves that were ended
                for path in left:
                    shutil.rmtree(path)
            self.staging.mkdir()

    def take_lock(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise CheckpointError(self.folder, "another save is at work in it", "give each its own folder") from None
        except OSError:  # a file system without locks
            os.close(descriptor)
        else:
            self.lock = descriptor

    def manifests(self, left: Sequence[Path]) -> list[Manifest]:
        """The folder's, and those of saves that were ended while they put files to their places."""
        try:
            found = [read_manifest(self.folder)]
        except WeightsError as error:
            raise CheckpointError(self.folder, f"it isn't clear whose files are in it: {error}", ELSEWHERE) from None
        for path in left:
            with suppress(WeightsError):
                found.append(read_manifest(path))
        return [manifest for manifest in found if manifest is not None]

    def check(self, names: Sequence[str]) -> None:
        """Nothing of others' is replaced, or would be read in the place of what is written."""
        shards = [p.name for p in self.folder.glob("model-*.safetensors") if SHARD.fullmatch(p.name)]
        mixed = [ALONE, INDEX, ADAPTER, *(shards if INDEX not in names else ())]
        for name in dict.fromkeys((*names, *mixed)):
            if present(self.folder / name) and not self.is_ours(name):
                why = "would be replaced" if name in names else "would be mixed up with what is saved"
                said = f"{name} isn't of an earlier save of this kind, or was changed since, and {why}"
                raise CheckpointError(self.folder, said, ELSEWHERE)

    def is_ours(self, name: str) -> bool:
        return any(manifest.is_ours(self.folder, name) for manifest in self.known)

    def put(
        self, written: Mapping[str, tuple[int, tuple[str, ...]]], index: str | None, extra: Mapping[str, bytes]
    ) -> None:
        """Every file to its place; nothing stays of the save before.

        written  what the manifest says of the files, which the ranks have written
        index    of several files, None of one
        extra    further files, which replace none of the user's
        """
        with told(self.folder):
            self.check_whole(written)
            files = dict(written)
            if index is not None:
                (self.staging / INDEX).write_text(index)
                files[INDEX] = described(self.staging / INDEX)
            rest = {name: text for name, text in extra.items() if self.may_write(name, text)}
            for name, content in rest.items():
                write_synced(self.staging / name, content)
            manifest = Manifest(self.save, files, {name: described(self.staging / name) for name in rest})
            write_synced(self.staging / MANIFEST, manifest.text().encode())
            stale = {name for each in self.known for name in each.files if name not in files and self.is_ours(name)}
            for name in (*files, *rest):
                (self.staging / name).replace(self.folder / name)
            for name in stale:
                (self.folder / name).unlink()
            (self.staging / MANIFEST).replace(self.folder / MANIFEST)
            sync_folder(self.folder)

    def check_whole(self, written: Mapping[str, tuple[int, tuple[str, ...]]]) -> None:
        """CheckpointError where this rank doesn't see what another wrote: nodes with disks of their own."""
        for name, (size, _) in written.items():
            path = self.staging / name
            if not path.is_file() or path.stat().st_size != size:
                said = f"the first rank doesn't see {name}, which another rank wrote"
                raise CheckpointError(self.folder, said, "give a folder that all nodes share")

    def may_write(self, name: str, content: bytes) -> bool:
        """Whether a further file is missing, or still as an earlier save wrote it; the user is told where it isn't."""
        path = self.folder / name
        if not present(path) or self.is_ours(name):
            return True
        if not path.is_file() or path.read_bytes() != content:
            warnings.warn(f"{path} is your own, and was left as it is", stacklevel=2)
        return False

    def close(self) -> None:
        """Removes what didn't come to its place, and lets others in."""
        if dist.get_rank() == 0 and self.folder.is_dir():
            shutil.rmtree(self.staging, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def beside(pretrained: Path | None) -> dict[str, bytes]:
    """The files of a folder, by name; none where there is no such folder."""
    if pretrained is None or not pretrained.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(pretrained.iterdir()) if path.is_file()}


def with_dtype(extra: Mapping[str, bytes], files: Sequence[Typed]) -> dict[str, bytes]:
    """config.json with the dtype that the weights are saved in, as save_pretrained writes it: from_pretrained makes
    the model in that one."""
    dtypes = {dtype for file in files for _, (dtype, shape) in file.tensors if dtype.is_floating_point and shape}
    found = dict(extra)
    if len(dtypes) == 1 and "config.json" in found:
        config = json.loads(found["config.json"])
        names = [name for name in ("dtype", "torch_dtype") if name in config]
        for name in names:
            config[name] = str(next(iter(dtypes))).removeprefix("torch.")
        if names:
            found["config.json"] = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    return found


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """The operating system's error as one that names the folder and the rank."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            folder, f"rank {dist.get_rank()}: {error}", "what was there before is whole; see why, and save again"
        ) from error
