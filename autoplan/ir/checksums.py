"""Checksums by which damage is noticed: of plain data, of bytes, and of stretches of a file.

They are no signatures: who can write a folder can seal it anew.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping

STRETCH_BYTES = 64 * 2**20  # of a file, hashed by itself: several processes share the work of one file
PIECE_BYTES = 4 * 2**20     # held at once
SEAL = "sha256"


def content_hash(data: Mapping[str, object]) -> str:
    """The sha256 of plain data, however its JSON is spaced and ordered."""
    return bytes_hash(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())


def sealed(data: Mapping[str, object]) -> dict[str, object]:
    """Data as JSON has them, with the checksum of all the rest under SEAL."""
    plain = {name: value for name, value in json.loads(json.dumps(data)).items() if name != SEAL}
    return {**plain, SEAL: content_hash(plain)}


def is_sealed(data: Mapping[str, object]) -> bool:
    """Whether data that were read from JSON are as they were when they were sealed."""
    return content_hash({name: value for name, value in data.items() if name != SEAL}) == data.get(SEAL)


def bytes_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stretches(size: int) -> Iterator[tuple[int, int]]:
    """First and last byte of the stretches of a file of so many bytes; one of none, where it is empty."""
    for start in range(0, max(size, 1), STRETCH_BYTES):
        yield start, min(size, start + STRETCH_BYTES)


def stretch_hash(descriptor: int, start: int, stop: int) -> str:
    """The sha256 of a stretch of an open file."""
    found = hashlib.sha256()
    while start < stop:
        piece = os.pread(descriptor, min(PIECE_BYTES, stop - start), start)
        if not piece:
            break
        found.update(piece)
        start += len(piece)
    return found.hexdigest()


def file_hash(path: str | os.PathLike, start: int = 0, stop: int | None = None) -> str:
    """The sha256 of a stretch of a file, of all of it where none is given."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return stretch_hash(descriptor, start, os.fstat(descriptor).st_size if stop is None else stop)
    finally:
        os.close(descriptor)


def file_hashes(path: str | os.PathLike) -> tuple[str, ...]:
    """The sha256 of each stretch of a file."""
    return tuple(file_hash(path, *each) for each in stretches(os.stat(path).st_size))
