"""What happens to files: bits flip, disks cut files off, people move, copy and drop them.

Each kind of damage takes a folder and a source of chance, does one thing, and says what it did: the text names the file
and the place, so that a case can be repeated by hand. A kind that finds nothing to damage returns None.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

Damage = Callable[[Path, random.Random], str | None]


def files_of(folder: Path) -> list[Path]:
    """Every file below a folder, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def one_of(folder: Path, chance: random.Random, least_bytes: int = 1) -> Path | None:
    """Any of its files that has so many bytes, each as likely as the others whatever its size."""
    found = [path for path in files_of(folder) if path.stat().st_size >= least_bytes]
    return chance.choice(found) if found else None


def flip_bit(folder: Path, chance: random.Random) -> str | None:
    """One bit of one file is the other one."""
    path = one_of(folder, chance)
    if path is None:
        return None
    content = bytearray(path.read_bytes())
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}: bit {bit} of byte {place} flipped"


def flip_bits(folder: Path, chance: random.Random) -> str | None:
    """A few bits, anywhere in one file."""
    path = one_of(folder, chance)
    if path is None:
        return None
    content = bytearray(path.read_bytes())
    places = sorted({chance.randrange(8 * len(content)) for _ in range(chance.randint(2, 20))})
    for place in places:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    return f"{path.name}: bits {places} flipped"


def overwrite(folder: Path, chance: random.Random) -> str | None:
    """A stretch of one file is zeros, as after a lost block, or anything."""
    path = one_of(folder, chance)
    if path is None:
        return None
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    stop = min(len(content), start + chance.choice((1, 16, 512, 4096)))
    zeros = chance.random() < 0.5
    content[start:stop] = bytes(stop - start) if zeros else chance.randbytes(stop - start)
    path.write_bytes(content)
    return f"{path.name}: bytes {start} to {stop} are {'zeros' if zeros else 'random'}"


def truncate(folder: Path, chance: random.Random) -> str | None:
    """One file ends early."""
    path = one_of(folder, chance)
    if path is None:
        return None
    size = chance.choice((0, path.stat().st_size - 1, chance.randrange(path.stat().st_size)))
    os.truncate(path, size)
    return f"{path.name}: cut to {size} bytes"


def extend(folder: Path, chance: random.Random) -> str | None:
    """One file goes on after its end."""
    path = one_of(folder, chance)
    if path is None:
        return None
    more = chance.randbytes(chance.choice((1, 8, 4096)))
    with path.open("ab") as file:
        file.write(more)
    return f"{path.name}: {len(more)} random bytes at its end"


def swap(folder: Path, chance: random.Random) -> str | None:
    """Two files have each other's names."""
    found = files_of(folder)
    if len(found) < 2:
        return None
    one, other = chance.sample(found, 2)
    aside = one.with_name(f"{one.name}.aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{one.name} and {other.name} swapped"


def copy_over(folder: Path, chance: random.Random) -> str | None:
    """One file has another's content."""
    found = files_of(folder)
    if len(found) < 2:
        return None
    one, other = chance.sample(found, 2)
    shutil.copyfile(one, other)
    return f"{one.name} copied over {other.name}"


def remove(folder: Path, chance: random.Random) -> str | None:
    """One file is gone."""
    path = one_of(folder, chance, least_bytes=0)
    if path is None:
        return None
    path.unlink()
    return f"{path.name} removed"


def rename(folder: Path, chance: random.Random) -> str | None:
    """One file has another name."""
    path = one_of(folder, chance, least_bytes=0)
    if path is None:
        return None
    name = chance.choice((f"{path.name}.bak", f"x{path.name}", path.name.upper()))
    path.rename(path.with_name(name))
    return f"{path.name} renamed {name}"


def duplicate(folder: Path, chance: random.Random) -> str | None:
    """One file is there twice, under a name as people or programs give it, or one of the folder's own kind."""
    path = one_of(folder, chance, least_bytes=0)
    if path is None:
        return None
    stem, dot, suffix = path.name.rpartition(".")
    copied = path.with_name(chance.choice((f"{path.name}~", f"{stem} (copy).{suffix}", f"{stem}-2{dot}{suffix}")))
    shutil.copyfile(path, copied)
    return f"{path.name} copied to {copied.name}"


def as_folder(folder: Path, chance: random.Random) -> str | None:
    """A folder stands where a file was."""
    path = one_of(folder, chance, least_bytes=0)
    if path is None:
        return None
    path.unlink()
    path.mkdir()
    return f"{path.name} is a folder"


class Intruder:
    """What unpickling runs: it leaves a file where it ran."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return os.mknod, (str(self.trace),)


TRACE = "code-ran"
"""Beside a damaged folder, where code in one of its files ran."""


def add_foreign(folder: Path, chance: random.Random) -> str | None:
    """A file that autoplan didn't write: anything, or a pickle under a name that some reader may open."""
    names = (".DS_Store", "notes.txt", ".metadata", "optimizer.pt", "__9_0.distcp", "state.json.tmp", "model.bin")
    path = folder / chance.choice(names)
    crafted = chance.random() < 0.5
    content = pickle.dumps(Intruder(folder.parent / TRACE)) if crafted else chance.randbytes(chance.randrange(2000))
    path.write_bytes(content)
    return f"{path.name}: {'a pickle that runs code' if crafted else 'random bytes'} added"


def pickle_over(folder: Path, chance: random.Random) -> str | None:
    """One file is a pickle that runs code when it is read, of the length that the file had where that is enough."""
    path = one_of(folder, chance)
    if path is None:
        return None
    content = pickle.dumps(Intruder(folder.parent / TRACE))
    path.write_bytes(content + bytes(max(0, path.stat().st_size - len(content))))
    return f"{path.name}: a pickle that runs code"


KINDS: Sequence[Damage] = (
    flip_bit, flip_bit, flip_bits, overwrite, truncate, extend, swap, copy_over, remove, rename, duplicate, as_folder,
    add_foreign, pickle_over,
)  # fmt: skip
"""Each as likely as the others; a single bit, the most quiet of all, twice."""


def damage(folder: Path, chance: random.Random) -> str:
    """Does one thing to a folder that holds files, and says what."""
    while (said := chance.choice(KINDS)(folder, chance)) is None:
        pass
    return said
