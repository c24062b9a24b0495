"""Keys come from a file that others cannot read."""

import pytest

from draftyard.doors.secret_file import read_keys
from draftyard.nouns.errors import Failure

GOOD = "0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"", 0o600, "holds no key"),
        (b"\n \n", 0o600, "holds no key"),
        (b"short", 0o600, "less than 16"),
        (GOOD.encode(), 0o644, "everybody"),
        ("ü".encode() * 10, 0o600, "not ASCII"),
        (b"x" * 70_000, 0o600, "too large"),
        (None, 0, "cannot read"),
    ],
)
def test_files_that_hold_no_usable_key(tmp_path, content, mode, words):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(Failure, match=words) as caught:
        read_keys(path)
    assert GOOD not in str(caught.value)


def test_each_line_is_a_key(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{GOOD}\n\n  {GOOD}2 \r\n")
    path.chmod(0o640)
    assert [key.reveal() for key in read_keys(path)] == [GOOD, f"{GOOD}2"]
