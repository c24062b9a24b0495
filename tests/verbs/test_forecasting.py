"""Plan, calibrate and their page on a tiny recipe: measured rates become forecasts, measurements narrow them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doors.test_prediction_files import SPEED
from tests.fakes.appliance import NAMES, lay_out
from tests.fakes.tiny_recipe import write_recipe

from draftyard.cli import main
from draftyard.doors.host_speed_files import write_host_speed

PLAIN = "none-fp32-cpu-tp1"


def planned(recipe: Path, out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["plan", str(recipe), "--out", str(out), "--format", "json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def forecasts(document: dict[str, object]) -> dict[str, dict[str, object]]:
    listed = document["forecasts"]
    assert isinstance(listed, list)
    return {one["variant"]: one for one in listed}


def test_a_measured_machine_has_forecasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    write_host_speed(SPEED, out)
    document = planned(recipe, out, capsys)
    found = forecasts(document)
    assert set(found) == {PLAIN, "ngram-fp32-cpu-tp1", "draft_target-fp32-cpu-tp1"}
    assert document["forecast_notes"] == []
    drafted = found["draft_target-fp32-cpu-tp1"]
    assert "assumed" in str(drafted["acceptance"])
    assert drafted["crossover"] is not None
    assert "measured 2026-01-01" in str(drafted["source"])


def test_lengths_and_acceptance_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    write_host_speed(SPEED, out)
    words = ("--acceptance", "2.5", "--input-tokens", "7", "--output-tokens", "9")
    found = forecasts(planned(recipe, out, capsys, *words))["draft_target-fp32-cpu-tp1"]
    assert (found["input_tokens"], found["output_tokens"]) == (7, 9)
    assert "given" in str(found["acceptance"])
    assert main(["plan", str(recipe), "--out", str(out), "--acceptance", "9"]) == 2
    assert "acceptance length 9 is impossible" in capsys.readouterr().err


def test_a_sweep_moves_and_narrows_the_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    write_host_speed(SPEED, out)
    before = forecasts(planned(recipe, out, capsys, "--input-tokens", "16", "--output-tokens", "16"))[PLAIN]
    loads = before["loads"]
    assert isinstance(loads, list)
    sweep = tmp_path / "sweep.csv"
    lines = ["variant,concurrency,input_tokens,output_tokens,tpot_ms,ttft_ms"]
    for load in loads:
        for prompt in (8, 16, 32):
            token, first = 1.6 * load["tpot_ms"]["value"], 1.3 * load["ttft_ms"]["value"] * prompt / 16
            lines.append(f"{PLAIN},{load['concurrency']},{prompt},16,{token},{first}")
    sweep.write_text("\n".join(lines) + "\n")
    assert main(["calibrate", str(recipe), "--sweep", str(sweep), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "reference/cpu/fp32" in printed.out
    assert "one model size" in printed.err
    after = forecasts(planned(recipe, out, capsys, "--input-tokens", "16", "--output-tokens", "16"))[PLAIN]
    moved = after["loads"]
    assert isinstance(moved, list)
    for old, new in zip(loads, moved, strict=True):
        assert new["tpot_ms"]["value"] / old["tpot_ms"]["value"] == pytest.approx(1.6, rel=0.12)
        wide = old["tpot_ms"]["high"] / old["tpot_ms"]["low"]
        assert new["tpot_ms"]["high"] / new["tpot_ms"]["low"] < wide
    assert "calibrated" in str(after["source"])


def test_a_sweep_of_strangers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    write_host_speed(SPEED, out)
    sweep = tmp_path / "sweep.csv"
    sweep.write_text("variant,concurrency,input_tokens,output_tokens,tpot_ms\nnobody,1,8,8,1\n")
    assert main(["calibrate", str(recipe), "--sweep", str(sweep), "--out", str(out)]) == 2
    assert "unknown variants nobody" in capsys.readouterr().err


def test_without_measured_rates_nothing_is_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    sweep = tmp_path / "sweep.csv"
    sweep.write_text(f"variant,concurrency,input_tokens,output_tokens,tpot_ms\n{PLAIN},1,8,8,1\n")
    assert main(["calibrate", str(recipe), "--sweep", str(sweep), "--out", str(tmp_path / "out")]) == 3
    assert "doctor --measure" in capsys.readouterr().err


def test_the_page_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out, page = write_recipe(tmp_path), tmp_path / "out", tmp_path / "plan.html"
    write_host_speed(SPEED, out)
    planned(recipe, out, capsys, "--html", str(page))
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == 4
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    assert main(["plan", str(recipe), "--out", str(tmp_path / "out"), "--html", str(tmp_path / "p.html")]) == 2
    assert "doctor --measure" in capsys.readouterr().err


def test_a_plan_loads_neither_torch_nor_arrays_nor_templates(tmp_path: Path) -> None:
    """What keeps a plan under 0.4 s of processor time; the time itself is measured by hand, on an idle machine."""
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    write_host_speed(SPEED, out)
    code = (
        "import sys; from draftyard.cli import main; code = main(sys.argv[1:]); "
        "heavy = [name for name in ('torch', 'numpy', 'jinja2', 'tritonclient', 'grpc') if name in sys.modules]; "
        "print(heavy, file=sys.stderr); sys.exit(code)"
    )
    words = ["plan", str(recipe), "--out", str(out), "--format", "json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_recipes_for_appliances_are_forecast_from_headers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes that their engines are built for, against what H100 and H200 report; every variant has every figure."""
    recipe = lay_out(tmp_path) / f"{name}.yaml"
    document = planned(recipe, tmp_path / "out", capsys, "--html", str(tmp_path / "page.html"))
    found = forecasts(document)
    variants = document["variants"]
    assert isinstance(variants, list)
    assert len(found) == len(variants)
    for one in found.values():
        memory, loads = one["memory"], one["loads"]
        assert isinstance(memory, dict)
        assert isinstance(loads, list)
        assert memory["fit"] in ("fits", "tight", "does not fit")
        assert memory["usable_bytes"] > 85e9
        assert (memory["fit"] == "does not fit") == (memory["total"]["value"] > memory["usable_bytes"])
        assert loads[0]["concurrency"] == 1
        drafted = not str(one["variant"]).startswith("none")
        for load in loads:
            assert (load["speedup"] is not None) == drafted
            assert load["step_ms"]["low"] < load["step_ms"]["value"] < load["step_ms"]["high"]
    assert (tmp_path / "page.html").read_text().count("<svg") >= 2


def test_16_bit_weights_of_70b_and_their_pool_do_not_fit_two_h100(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """70.6 GB of weights and 131,072 tokens of 164 KB on each of two devices of 85.5 GB: 98 GB; in FP8 it fits."""
    recipe = lay_out(tmp_path) / "llama-3.3-70b.yaml"
    found = forecasts(planned(recipe, tmp_path / "out", capsys))
    words = {}
    for name in ("none-fp16-h100_sxm", "none-fp8-h100_sxm", "none-fp16-h200_sxm"):
        memory = next(one for variant, one in found.items() if variant.startswith(name))["memory"]
        assert isinstance(memory, dict)
        words[name] = memory["fit"]
    assert list(words.values()) == ["does not fit", "fits", "fits"]
