"""Calibration texts: local files of any name, their format known by content, never fetched."""

import json
from pathlib import Path

import pytest
from tests.fakes.tiny_model import write_tokenizer

from draftyard.doors.calibration_texts import encode_texts, find_calibration_files, read_calibration_texts
from draftyard.nouns.errors import Failure
from draftyard.nouns.prompt import Message


def read(path: Path, text_field: str = "text", most: int = 100) -> tuple[object, ...]:
    return read_calibration_texts(find_calibration_files(path), text_field, most)


@pytest.mark.parametrize("name", ["calib_a", "my_cnn_dailymail_copy", "train.parquet", "x.csv"])
def test_the_name_never_matters(tmp_path: Path, name: str) -> None:
    """Row 109: the same bytes under any name are the same calibration."""
    (tmp_path / name).write_text('{"text": "w4 w5"}\n\n{"text": "w6"}\n')
    (tmp_path / "plain").write_text('{"text": "w4 w5"}\n\n{"text": "w6"}\n')
    assert read(tmp_path / name) == ("w4 w5", "w6")
    assert find_calibration_files(tmp_path / name).digest == find_calibration_files(tmp_path / "plain").digest


@pytest.mark.parametrize("name", ["calib_a", "my_cnn_dailymail_copy"])
def test_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "b.txt").write_text("two\n")
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    (folder / "README.md").write_text("not a text of it\n")
    assert read(folder) == ("one", "two")


def test_lines_of_text(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("one [1]\n\n  two {x}\n3\n")
    assert read(tmp_path / "t") == ("one [1]", "two {x}", "3")
    assert read(tmp_path / "t", most=2) == ("one [1]", "two {x}")


def test_a_named_field_and_messages(tmp_path: Path) -> None:
    lines = [{"article": "one"}, {"messages": [{"role": "user", "content": "two"}], "id": "x"}]
    (tmp_path / "t").write_text("\n".join(json.dumps(line) for line in lines))
    assert read(tmp_path / "t", "article") == ("one", (Message("user", "two"),))


@pytest.mark.parametrize("name", ["cnn_dailymail", "abisee/cnn_dailymail"])
def test_a_name_that_is_no_path_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Row 110."""
    with pytest.raises(Failure, match="never looked up by name") as failure:
        find_calibration_files(tmp_path / name)
    assert '{"text": "..."}' in failure.value.hint


def test_a_snapshot_of_a_hub_is_refused_with_the_layout(tmp_path: Path) -> None:
    """Row 110: a directory with other files."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "train-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(Failure, match=r"neither \.txt nor \.jsonl") as failure:
        find_calibration_files(tmp_path)
    assert '{"text": "..."}' in failure.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PAR1\x00\x01", "Parquet"),
        (b"\xff\xfe\x00", "no UTF-8"),
        (b"a\0b", "is no text"),
        (b"\n \n", "holds no text"),
        (b'{"text": "a"}\n{"other": 1}', "line 2: neither 'text'.*its keys are other"),
        (b'{"text": "a"}\nplain', "line 2"),
        (b'{"text": "a"}\n[1]', "line 2: not a JSON object"),
        (b'{"messages": [{"role": "user"}]}', "line 1: each message needs"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(Failure, match=words):
        read(tmp_path / "t")


def test_texts_become_the_models_tokens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, adds_bos=True)
    encoded = encode_texts(tmp_path, ("w4 w5 w6", (Message("user", "w7 w8"),), "w9"), max_tokens=3)
    assert encoded == ((1, 4, 5), (7, 8), (1, 9))


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(Failure, match="no chat template"):
        encode_texts(tmp_path, ((Message("user", "w7"),),), 8)
    assert encode_texts(tmp_path, ("w7",), 8) == ((7,),)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages[3].content }}"])
def test_a_template_that_refuses_is_told(tmp_path: Path, template: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(Failure, match="chat template"):
        encode_texts(tmp_path, ((Message("user", "w7"),),), 8)
