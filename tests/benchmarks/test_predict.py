"""The benchmark of the predictor on any CSV of its columns: nothing is dropped unsaid, nothing makes it fall."""

import csv
import json
from pathlib import Path

import pytest
from benchmarks.predict.__main__ import main, sort_rows, split_of
from benchmarks.predict.published_models import guessed_shape, published_shape
from benchmarks.predict.rows import Row, device_named, read_rows, storage_named

ROWS = Path(__file__).parents[1] / "rules" / "predict" / "published_rows.csv"


def stored_rows() -> list[dict[str, str]]:
    with ROWS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["--rows", str(path), "--json", "-", "--quick"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_every_row_is_in_a_family_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = stored_rows()
    strange = {**rows[0], "id": "x1", "model": "Nobody-9Q", "params_b": "", "active_b": ""}
    unknown_gpu = {**rows[1], "id": "x2", "gpu": "Abacus 3"}
    no_value = {**rows[2], "id": "x3", "value": ""}
    other = {**rows[3], "id": "x4", "kind": "weather"}
    found = run(write(tmp_path / "rows.csv", [*rows, strange, unknown_gpu, no_value, other]), capsys)
    left = found["in_no_family"]
    assert isinstance(left, dict)
    assert left["no sizes for model Nobody-9Q"] == ["x1"]
    assert left["no constants for GPU Abacus 3"] == ["x2"]
    assert left["no value"] == ["x3"]
    assert left["kind weather is in no family"] == ["x4"]
    assert found["rows"] == len(rows) + 4


def test_a_model_that_is_not_listed_is_guessed_from_its_parameters() -> None:
    dense = guessed_shape("Nobody-13B", 13e9, 13e9)
    assert dense.parameters == pytest.approx(13e9, rel=0.02)
    sparse = published_shape("Nobody-100B-A10B", 100.0, 10.0)
    assert sparse is not None
    assert sparse.parameters == pytest.approx(100e9, rel=0.1)
    assert sparse.active_weights + sparse.embedding_weights == pytest.approx(10e9, rel=0.1)


@pytest.mark.parametrize(
    "column", ["params_b", "kv_precision", "engine_version", "tp", "split", "notes", "id", "draft"]
)
def test_a_missing_column_is_no_end(column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{name: value for name, value in row.items() if name != column} for row in stored_rows()]
    found = run(write(tmp_path / "rows.csv", rows), capsys)
    assert found["rows"] == len(rows)
    assert found["families"]


def test_a_file_of_one_half_is_scored_with_the_stored_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "split": "holdout"} for row in stored_rows()]
    found = run(write(tmp_path / "rows.csv", rows), capsys)
    families = found["families"]
    assert isinstance(families, list)
    scored = {one["family"]: one["stored_fit"] for one in families}
    assert scored["decode step"]["rows"] == 10
    assert scored["decode step"]["median_percent"] < 6.0
    assert 0 <= scored["memory"]["coverage_percent"] <= 100


def test_the_split_column_decides_where_it_parts_the_file() -> None:
    both = [Row({"split": "train"}), Row({"split": "holdout"})]
    names, in_fit = split_of(both)
    assert names == ("split train", "split holdout")
    assert [in_fit(row) for row in both] == [True, False]
    names, _ = split_of([Row({"split": "train"}), Row({"split": "train"})])
    assert names[0].startswith("hash")


@pytest.mark.parametrize(
    ("column", "text"), [("value", "nan"), ("value", "-1"), ("isl", "-3"), ("batch_or_concurrency", "inf")]
)
def test_impossible_numbers_are_no_numbers(
    column: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = stored_rows()
    rows[0] = {**rows[0], column: text}
    left = run(write(tmp_path / "rows.csv", rows), capsys)["in_no_family"]
    assert isinstance(left, dict)
    assert rows[0]["id"] in [name for ids in left.values() for name in ids]


def test_halves_hold_whole_configurations() -> None:
    rows = read_rows(ROWS)
    one = Row({**rows[0].columns, "metric": "ttft", "kind": "ttft", "value": "1"})
    assert one.half == rows[0].half
    assert {row.half for row in rows} == {0, 1}


def test_suspect_rows_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = stored_rows()
    rows[0] = {**rows[0], "notes": "suspect: ten times its neighbours", "value": "737"}
    found = run(write(tmp_path / "rows.csv", rows), capsys)
    suspect, families = found["suspect"], found["families"]
    assert isinstance(suspect, dict)
    assert isinstance(families, list)
    assert suspect["decode step"]["rows"] == 1
    assert next(one for one in families if one["family"] == "decode step")["stored_fit"]["rows"] == 9


def test_names_of_devices_and_precisions() -> None:
    assert device_named("H100 SXM (assumed)") == device_named("H100 SXM")
    assert device_named("A100 80GB (330 W limit)") == device_named("A100")
    assert device_named("Abacus") is None
    eight = storage_named("FP8", "")
    assert eight is not None
    assert (eight.weight_bytes, eight.embedding_bytes, eight.cache_bytes) == (1.0, 2.0, 2.0)
    assert storage_named("FP99", "") is None


def test_sorting_keeps_every_row() -> None:
    rows = read_rows(ROWS)
    cases, speculation, left = sort_rows(rows)
    assert len(cases) + len(speculation) + sum(len(ids) for ids in left.values()) == len(rows)
