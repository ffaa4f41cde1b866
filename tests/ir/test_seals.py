"""Checksums: the same for the same content, another for any other; of files by stretches."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir import checksums
from autoplan.ir.checksums import bytes_hash, content_hash, file_hashes, stretches

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_the_order_of_names_does_not_count(data: dict) -> None:
    assert content_hash(data) == content_hash(dict(reversed(data.items())))


@pytest.mark.parametrize("other", [{"a": 1.0}, {"a": "1"}, {"a": [1]}, {"a": True}, {"b": 1}, {}])
def test_another_content_has_another_checksum(other: dict) -> None:
    assert content_hash({"a": 1}) != content_hash(other)


@given(st.integers(0, 40))
def test_stretches_cover_a_file(size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "STRETCH_BYTES", 7)
        found = list(stretches(size))
        assert [stop for _, stop in found[:-1]] == [start for start, _ in found[1:]]
        assert found[0][0] == 0 and found[-1][1] == size


def test_a_file_has_a_checksum_for_each_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "STRETCH_BYTES", 10)
    monkeypatch.setattr(checksums, "PIECE_BYTES", 3)
    (tmp_path / "f").write_bytes(bytes(range(25)))
    parts = (range(0, 10), range(10, 20), range(20, 25))
    assert file_hashes(tmp_path / "f") == tuple(bytes_hash(bytes(part)) for part in parts)
    assert bytes_hash(b"abc") == hashlib.sha256(b"abc").hexdigest()
