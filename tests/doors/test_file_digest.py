"""The hash of a file is that of its bytes, whoever reads them and whether the disk holds them."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.doors.file_digest import PIECE_BYTES, StreamDigest, bytes_digest, file_digest, hash_pool


def plainly(content: bytes) -> str:
    """The definition, word for word."""
    pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
    leaves = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    return hashlib.sha256(leaves + len(content).to_bytes(8, "little")).hexdigest()


@given(st.binary(max_size=300))
@settings(max_examples=30)
def test_small_files(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("d") / "file"
    path.write_bytes(content)
    assert file_digest(path) == plainly(content)


def test_pieces_and_their_borders(tmp_path: Path) -> None:
    for extra in (-1, 0, 1):
        content = bytes(range(256)) * ((2 * PIECE_BYTES) // 256 + 1)
        content = content[: 2 * PIECE_BYTES + extra]
        (tmp_path / "file").write_bytes(content)
        assert file_digest(tmp_path / "file") == plainly(content)


def test_holes_are_zeros(tmp_path: Path) -> None:
    sparse, full = tmp_path / "sparse", tmp_path / "full"
    with sparse.open("wb") as file:
        file.write(b"head")
        file.seek(3 * PIECE_BYTES + 5)
        file.write(b"middle")
        file.truncate(6 * PIECE_BYTES + 17)
    full.write_bytes(sparse.read_bytes())
    assert file_digest(sparse) == file_digest(full) == plainly(full.read_bytes())


def test_a_large_hole_costs_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x")
        file.truncate(1 << 40)
    assert len(file_digest(tmp_path / "file")) == 64


def test_one_bit_changes_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytearray(PIECE_BYTES + 100)
    path.write_bytes(content)
    first = file_digest(path)
    content[-1] ^= 1
    path.write_bytes(content)
    assert file_digest(path) != first
    path.write_bytes(content[:-1])
    assert file_digest(path) != first


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 5])
def test_bytes_that_pass_by_have_the_digest_of_their_file(tmp_path, size):
    data = bytes(range(251)) * (size // 251 + 1)
    path = tmp_path / "file"
    path.write_bytes(data[:size])
    with hash_pool() as pool:
        stream = StreamDigest(pool)
        for offset in range(0, size, PIECE_BYTES):
            stream.update(data[:size][offset : offset + PIECE_BYTES])
        assert stream.hexdigest() == file_digest(path) == bytes_digest(data[:size])
