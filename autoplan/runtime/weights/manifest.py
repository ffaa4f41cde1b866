"""autoplan-weights.json: what ``save_weights`` wrote into a folder, and the checksums by which damage is noticed.

A file is ours, to be replaced or removed by the next save, where the manifest names it and it hasn't been changed
since. Checksums are of stretches of files, so that the ranks that see the same files share the work of one check.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autoplan.errors import WeightsError
from autoplan.ir.checksums import file_hash, file_hashes, is_sealed, sealed, stretches
from autoplan.runtime.weights.tensor_files import read_metadata, without_duplicates

MANIFEST, FORMAT = "autoplan-weights.json", 1
SAVE = "autoplan-save"  # under which a safetensors file's __metadata__ has the save that wrote it
REPLACED = f"save it again; where files were replaced on purpose, remove {MANIFEST}"


@dataclass(frozen=True)
class Manifest:
    """What one save wrote.

    save   its identity
    files  the weights and their index: bytes of each, and the sha256 of each of its stretches
    rest   what came with the model, config.json and so on: likewise
    """

    save: str
    files: Mapping[str, tuple[int, tuple[str, ...]]]
    rest: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def text(self) -> str:
        data = {"format": FORMAT, **asdict(self)}
        return json.dumps(sealed(data), indent=1) + "\n"

    def is_ours(self, folder: Path, name: str) -> bool:
        """Whether a file of the folder is still as it was written; of a safetensors file its header tells."""
        known = self.files.get(name, self.rest.get(name))
        path = folder / name
        if known is None or path.is_symlink() or not path.is_file() or path.stat().st_size != known[0]:
            return False
        if name.endswith(".safetensors"):
            return read_metadata(path).get(SAVE) == self.save
        return file_hashes(path) == known[1]


def described(path: Path) -> tuple[int, tuple[str, ...]]:
    """What a manifest says of a file."""
    return path.stat().st_size, file_hashes(path)


def read_manifest(folder: Path) -> Manifest | None:
    """A folder's manifest, None where there is none; WeightsError where it is damaged."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        data = json.loads(path.read_text(), object_pairs_hook=without_duplicates)
        if not is_sealed(data):
            raise ValueError("its content isn't what its sha256 says")
        if data.pop("format") != FORMAT:
            raise ValueError(f"another format than {FORMAT}")
        kinds = ({n: (size, tuple(hashes)) for n, (size, hashes) in data[k].items()} for k in ("files", "rest"))
        return Manifest(data["save"], *kinds)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(path, f"it is damaged ({error})", REPLACED) from None


def manifest_of(source: Path) -> tuple[Path, Manifest] | None:
    """The folder and the manifest by which a file, or a folder of them, is checked; None where they are another's."""
    folder = source.parent if source.is_file() else source
    manifest = read_manifest(folder)
    if manifest is None or (source.is_file() and source.name not in manifest.files):
        return None
    names = [source.name] if source.is_file() else list(manifest.files)
    return folder, Manifest(manifest.save, {name: manifest.files[name] for name in names})


def identity(folder: Path, manifest: Manifest) -> tuple[object, ...]:
    """What tells whether two ranks see the same files. WeightsError where one is missing or of another size."""
    found: list[object] = [manifest.save]
    for name, (size, _) in manifest.files.items():
        if not (folder / name).is_file():
            raise WeightsError(folder, f"{name} is missing, which {MANIFEST} names", REPLACED)
        status = (folder / name).stat()
        if status.st_size != size:
            raise WeightsError(folder, f"{name} has {status.st_size} bytes, {MANIFEST} says {size}", REPLACED)
        found += [name, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
    return tuple(found)


def check_chosen(folder: Path, manifest: Manifest, files: Sequence[Path]) -> None:
    """WeightsError where other files would be read than those that were written."""
    for file in files:
        if file.name not in manifest.files:
            raise WeightsError(folder, f"{file.name} isn't of the save that {MANIFEST} tells of", REPLACED)


def verify(folder: Path, manifest: Manifest, part: int = 0, parts: int = 1) -> None:
    """WeightsError where a file isn't what was written; of several parts of the work, one."""
    for number, (name, place, (start, stop)) in enumerate(work(manifest)):
        if number % parts != part:
            continue
        if file_hash(folder / name, start, stop) != manifest.files[name][1][place]:
            said = f"it is damaged, or not what was saved there: bytes {start} to {stop} differ from {MANIFEST}"
            raise WeightsError(folder / name, said, REPLACED)


def work(manifest: Manifest) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """Every stretch of every file: (file, its place in the file's list, first and last byte)."""
    for name, (size, _) in manifest.files.items():
        for place, stretch in enumerate(stretches(size)):
            yield name, place, stretch
