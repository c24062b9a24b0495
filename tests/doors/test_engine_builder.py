"""Runs the stand-in for the engine builder as a real program and looks at what it leaves."""

import json
import os
import struct
import sys
from pathlib import Path

import pytest

from draftyard.doors.engine_builder import BuildBounds, probe_builder, run_builder
from draftyard.doors.gpu_devices import GpuDevice, parse_device
from draftyard.nouns.errors import Failure

FAKE = Path(__file__).resolve().parents[1] / "fakes" / "trtllm_build.py"


def write_checkpoint(directory: Path, ranks: int = 2, size_bytes: int = 4096) -> Path:
    """A checkpoint of headers and holes."""
    directory.mkdir()
    config = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "num_hidden_layers": 2,
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
    }
    (directory / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    for rank in range(ranks):
        with (directory / f"rank{rank}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size_bytes)
    return directory


def run(tmp_path: Path, faults: str = "", bounds: BuildBounds | None = None, tell=lambda line: None):
    checkpoint, output = write_checkpoint(tmp_path / "checkpoint"), tmp_path / "output"
    output.mkdir()
    return run_builder(
        [sys.executable, str(FAKE), "--checkpoint_dir", str(checkpoint), "--output_dir", str(output),
         "--output_timing_cache", str(output / "timing.cache")],
        output=output,
        log_path=tmp_path / "build.log",
        bounds=bounds or BuildBounds(60),
        tell=tell,
        environment={**os.environ, "FAKE_BUILD": faults},
    )  # fmt: skip


def test_a_build_is_followed_line_by_line(tmp_path):
    lines: list[str] = []
    remains = run(tmp_path, tell=lines.append)
    assert (remains.exit_code, set(remains.files)) == (
        0,
        {"config.json", "rank0.engine", "rank1.engine", "timing.cache"},
    )
    assert remains.files["rank1.engine"] == 4178
    assert remains.config is not None and remains.config["version"] == "1.2.1"
    assert lines == remains.log.splitlines()
    assert "Total time of building all engines" in lines[-1]


def test_a_killed_build_says_so(tmp_path):
    remains = run(tmp_path, "killed")
    assert (remains.exit_code, "rank0.engine" in remains.files, "rank1.engine" in remains.files) == (-9, True, False)


def test_a_hanging_build_is_ended(tmp_path):
    remains = run(tmp_path, "hang", BuildBounds(1.5))
    assert remains.timed_out and remains.exit_code == -15


def test_a_build_that_takes_too_much_memory_is_ended(tmp_path):
    remains = run(tmp_path, "hang", BuildBounds(30, memory_bytes=1 << 20))
    assert remains.out_of_host_memory


def test_an_interrupt_leaves_no_builder_behind(tmp_path):
    def give_up(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "hang", tell=give_up)
    assert not [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(tmp_path).encode() in _command(entry) and entry.name != str(os.getpid())
    ]


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_builder_is_asked_what_it_knows():
    probe = probe_builder([sys.executable, str(FAKE)], [sys.executable])
    assert {"checkpoint_dir", "speculative_decoding_mode", "use_paged_context_fmha"} <= set(probe.options)
    assert "torch" in probe.versions


def test_a_gpu_is_read_from_the_drivers_line():
    line = "NVIDIA H200, GPU-9a, 143771, 580.95.05, 9.0, Disabled"
    assert parse_device(line) == GpuDevice("NVIDIA H200", "GPU-9a", 143771 << 20, "580.95.05", "9.0", False)
    with pytest.raises(Failure, match="not 6 fields"):
        parse_device("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
