"""Every way a tensor file can be wrong has its own message, and what is written is what comes back."""

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from draftyard.doors import tensors
from draftyard.doors.tensors import TensorWriter, open_tensor_file, same_bytes, tensor_file_bytes
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorSpec, TensorType


def write_raw(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], dtype=np.int64)}
    save_file(values, tmp_path / "m.safetensors", metadata={"format": "pt"})
    opened = open_tensor_file(tmp_path / "m.safetensors")
    assert opened.metadata == {"format": "pt"}
    assert opened.headers["a"].shape == (2, 3)
    assert opened.headers["a"].file == "m.safetensors"
    np.testing.assert_array_equal(np.frombuffer(opened.read("a"), np.float32).reshape(2, 3), values["a"])
    np.testing.assert_array_equal(np.frombuffer(opened.read("b"), np.int64), values["b"])
    view = opened.read("a")
    np.testing.assert_array_equal(np.frombuffer(view, np.float32).reshape(2, 3), values["a"])
    with pytest.raises(KeyError):
        opened.read("c")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6))
def test_the_library_reads_what_is_written(tmp_path_factory: pytest.TempPathFactory, shapes: dict) -> None:
    shapes.pop("__metadata__", None)
    path = tmp_path_factory.mktemp("w") / "m.safetensors"
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.standard_normal(shape).astype([np.float32, np.float16][i % 2])
        for i, (name, shape) in enumerate(shapes.items())
    }
    kinds = {np.dtype(np.float32): TensorType.F32, np.dtype(np.float16): TensorType.F16}
    specs = [TensorSpec(name, kinds[array.dtype], array.shape) for name, array in arrays.items()]
    with TensorWriter(path, specs, {"made": "here"}) as writer:
        for name, array in reversed(arrays.items()):
            writer.write(name, array.tobytes())
    assert path.stat().st_size == tensor_file_bytes(specs, {"made": "here"})
    loaded = load_file(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
    assert {header.offset_bytes % header.type.item_bytes for header in open_tensor_file(path).headers.values()} <= {0}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"not json", b"", "its header is no JSON"),
        (b"[1]", b"", "its header is no JSON object"),
        ({"a": entry(0, 4, [1], "F31")}, b"1234", "unknown element type 'F31'"),
        ({"a": entry(0, 4, [-1])}, b"1234", "impossible shape"),
        ({"a": entry(4, 0, [1])}, b"1234", "impossible offsets"),
        ({"a": entry(0, 8, [1])}, b"12345678", "cannot have 8 bytes"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234", "must hold dtype, shape and data_offsets"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, b"x" * 12, "b overlaps a"),
        ({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, b"x" * 12, "4 bytes before b belong to no tensor"),
        ({"a": entry(0, 4, [1])}, b"x" * 6, "2 bytes at its end belong to no tensor"),
        ({"a": entry(0, 8, [2])}, b"1234", "is truncated: a ends at byte"),
        (b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":1}', b"", "'a' appears twice"),
        ({"__metadata__": {"x": 1}}, b"", "__metadata__ is no map of texts"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    path = write_raw(tmp_path / "m.safetensors", header, data)
    with pytest.raises(Failure, match=r"m\.safetensors") as caught:
        open_tensor_file(path)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, too short"),
        (b"1234567", "7 bytes, too short"),
        ((10**9).to_bytes(8, "little") + b"x" * 50, "impossible header length 1000000000"),
        ((100).to_bytes(8, "little") + b"{}", "the header alone needs 108 bytes, the file has 10"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n",
            "Git LFS pointer, fetch the real file (expected size 4976698672)",
        ),
    ],
)
def test_files_that_are_no_tensor_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(Failure) as caught:
        open_tensor_file(tmp_path / "m.safetensors")
    assert message in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"none\.safetensors is missing"):
        open_tensor_file(tmp_path / "none.safetensors")


SPECS = [TensorSpec("a", TensorType.F32, (2,)), TensorSpec("b", TensorType.F16, (2,))]


def test_an_error_or_a_forgotten_tensor_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(RuntimeError), TensorWriter(path, SPECS, {}) as writer:
        writer.write("a", b"x" * 8)
        raise RuntimeError("stop")
    assert not path.exists()
    with pytest.raises(ValueError, match=r"lacks \['b'\]"), TensorWriter(path, SPECS, {}) as writer:
        writer.write("a", b"x" * 8)
    assert not path.exists()


def test_a_tensor_of_another_size_or_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 4 bytes, expected 8"), TensorWriter(tmp_path / "m", SPECS, {}) as writer:
        writer.write("a", b"x" * 4)
    with pytest.raises(ValueError, match="written before"), TensorWriter(tmp_path / "m", SPECS, {}) as writer:
        writer.write("a", b"x" * 8)
        writer.write("a", b"x" * 8)


def test_parts_of_a_tensor_come_from_any_thread_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = np.arange(4096, dtype=np.float32)
    specs = [TensorSpec("a", TensorType.F32, (4096,)), TensorSpec("b", TensorType.F32, (4096,))]
    parts = [(name, at) for name in ("a", "b") for at in range(0, 4096, 64)]
    random.Random(0).shuffle(parts)
    with TensorWriter(path, specs, {}) as writer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: writer.write_at(part[0], part[1] * 4, values[part[1] : part[1] + 64].data), parts))
    for name, found in load_file(path).items():
        np.testing.assert_array_equal(found, values, err_msg=name)
    target = bytearray(128)
    open_tensor_file(path).read_into("b", 256, memoryview(target))
    np.testing.assert_array_equal(np.frombuffer(target, np.float32), values[64:96])


def test_parts_that_are_too_many_or_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="written before"), TensorWriter(tmp_path / "m", SPECS, {}) as writer:
        writer.write_at("a", 0, b"x" * 8)
        writer.write_at("a", 4, b"x" * 4)
    with pytest.raises(ValueError, match="not expected"), TensorWriter(tmp_path / "m", SPECS, {}) as writer:
        writer.write_at("a", 4, b"x" * 8)
    with pytest.raises(ValueError, match=r"lacks \['a'\]"), TensorWriter(tmp_path / "m", SPECS, {}) as writer:
        writer.write("b", b"x" * 4)
        writer.write_at("a", 4, b"x" * 4)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1024, np.float32)}, tmp_path / "m.safetensors")
    opened = open_tensor_file(tmp_path / "m.safetensors")
    os.truncate(tmp_path / "m.safetensors", 2048)
    with pytest.raises(Failure, match=r"m\.safetensors became shorter"):
        opened.read_into("a", 0, memoryview(bytearray(4096)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_the_environments_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    specs = [TensorSpec("a", TensorType.F32, (1 << 16,))]
    with (
        pytest.raises(Failure, match=r"no space left while writing m\.safetensors") as caught,
        TensorWriter(path, specs, {}) as writer,
    ):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file.fileno())
        os.close(full)
        writer.write("a", bytes(4 << 16))
    assert caught.value.code is ExitCode.ENVIRONMENT
    assert not path.exists()


def test_same_bytes_looks_beyond_the_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_COPY_BYTES", 4)
    first = memoryview(b"0123456789")
    assert same_bytes(first, memoryview(b"0123456789"))
    assert not same_bytes(first, memoryview(b"0123456780"))
    assert not same_bytes(first, memoryview(b"012345678"))
