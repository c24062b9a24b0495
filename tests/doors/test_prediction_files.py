"""Files of the predictor: coefficients that ship, calibrations, host rates, sweeps and remembered tokenizers."""

import json
from pathlib import Path

import pytest
from tests.fakes.tiny_model import write_model

from draftyard.doors.host_speed_files import host_speed_path, read_host_speed, write_host_speed
from draftyard.doors.prediction_files import (
    calibration_path,
    prompt_tokens,
    read_calibration,
    read_coefficients,
    write_calibration,
)
from draftyard.doors.sweep_files import read_sweep
from draftyard.doors.tokenizer_files import read_tokenizer
from draftyard.doors.tokenizer_memory import keep_tokenizers, remembered_tokenizer
from draftyard.nouns.calibration import CalibrationFile
from draftyard.nouns.errors import Failure
from draftyard.nouns.host_speed import HostSpeed, KernelRates
from draftyard.nouns.lane import Lane
from draftyard.rules.predict.coefficients import STEP_FIELDS, lane_coefficients

SPEED = HostSpeed(
    measured_at="2026-01-01T00:00:00+00:00",
    processor="made up",
    processors=2,
    load_average_1min=0.1,
    copy_bytes_per_s=1e10,
    matrix_flops=1e11,
    reference={
        "fp32": KernelRates(read_bytes_per_s=1e10, flops=5e10, layer_us=50, step_us=100, sequence_us=50, sharpness=1.5)
    },
)


@pytest.mark.parametrize("lane", [Lane.TENSORRT, Lane.LLMAPI])
def test_shipped_coefficients_are_whole(lane: Lane) -> None:
    found = lane_coefficients(read_coefficients(), lane.value)
    assert "TensorRT-LLM" in found.source
    assert found.bounds.token[0] < 0 < found.bounds.token[1]
    assert len(found.errors) == len(STEP_FIELDS)
    assert all(error > 0 for error in found.errors)


def test_coefficients_without_a_lane_are_a_broken_installation() -> None:
    with pytest.raises(Failure, match="incomplete"):
        lane_coefficients(read_coefficients(), "reference")


def test_host_rates_are_kept(tmp_path: Path) -> None:
    assert read_host_speed(tmp_path) is None
    write_host_speed(SPEED, tmp_path)
    assert read_host_speed(tmp_path) == SPEED
    host_speed_path(tmp_path).write_text("{}")
    with pytest.raises(Failure, match="broken"):
        read_host_speed(tmp_path)


def test_calibrations_are_kept(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) == CalibrationFile()
    write_calibration(CalibrationFile(), tmp_path)
    assert read_calibration(tmp_path) == CalibrationFile()
    calibration_path(tmp_path).write_text('{"schema_version": 99}')
    with pytest.raises(Failure, match="version 99"):
        read_calibration(tmp_path)


def test_sweeps_name_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    with pytest.raises(Failure, match="cannot be read"):
        read_sweep(path)
    path.write_text("variant,concurrency\na,1\n")
    with pytest.raises(Failure, match="lacks input_tokens, output_tokens, tpot_ms"):
        read_sweep(path)
    head = "variant,concurrency,input_tokens,output_tokens,tpot_ms,ttft_ms\n"
    path.write_text(f"{head}a,1,10,20,1.5,\na,x,10,20,-1,\n")
    with pytest.raises(Failure, match="line 3"):
        read_sweep(path)
    path.write_text(f"{head}a,1,10,20,1.5,\n")
    (point,) = read_sweep(path)
    assert (point.concurrency, point.tpot_ms, point.ttft_ms, point.speedup) == (1, 1.5, None, None)


def test_prompt_lengths_come_from_successful_records(tmp_path: Path) -> None:
    lines = [
        {"concurrency": 1, "timeline": {"outcome": "success", "input_tokens": 10}},
        {"concurrency": 1, "timeline": {"outcome": "success", "input_tokens": 20}},
        {"concurrency": 2, "timeline": {"outcome": "error", "input_tokens": 99}},
        {"concurrency": 4, "timeline": {"outcome": "success", "input_tokens": None}},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert prompt_tokens(path) == {1: 15.0}


def test_tokenizers_are_remembered_until_their_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    write_model(model)
    facts = read_tokenizer(model, {})
    assert remembered_tokenizer(model, {}, cache) == facts
    assert not cache.exists()
    keep_tokenizers(cache)
    monkeypatch.setattr("draftyard.doors.tokenizer_memory._REMEMBERED", {})
    monkeypatch.setattr("draftyard.doors.tokenizer_memory.read_tokenizer", lambda *_: pytest.fail("read again"))
    assert remembered_tokenizer(model, {}, cache) == facts
    monkeypatch.undo()
    monkeypatch.setattr("draftyard.doors.tokenizer_memory._REMEMBERED", {})
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace("w9", "v9"))
    assert remembered_tokenizer(model, {}, cache) != facts
