"""Sealing: everything an appliance needs and nothing of the machine it was built on, the same bytes each time."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.fakes.tiny_recipe import write_recipe

from draftyard import __version__
from draftyard.cli import main
from draftyard.doors.store import StoreRoots
from draftyard.nouns.blueprint import StepKind
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.sealed_release import Release
from draftyard.rules.redaction import redacted
from draftyard.verbs.release import ReleaseOptions, Sealed, release
from draftyard.verbs.verify_release import Trust, verify_release

ROOT = Path(__file__).parents[2]
ANYONE = Trust(Path("/nowhere/allowed"), unsigned=True)
NAMES = ("none-fp32-cpu-tp1", "ngram-fp32-cpu-tp1")


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, its models and its repositories; tests that change them take a copy."""
    root = tmp_path_factory.mktemp("packaged")
    recipe = write_recipe(root)
    (root / "target" / "LICENSE").write_text("the model's own terms\n")
    (root / "prompts").mkdir()
    (root / "prompts" / "test.jsonl").write_text('{"id": "a", "domain": "qa", "prompt": "w1"}\n')
    assert main(["package", str(recipe), "--out", str(root / "out")]) == 0
    return root


def seal(root: Path, **options: object) -> Sealed:
    chosen = {"out": root / "out", "variants": NAMES, **options}
    return release(root / "recipe.yaml", ReleaseOptions(**chosen), lambda words: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sealed(packaged: Path) -> Sealed:
    return seal(packaged)


def copied(packaged: Path, tmp_path: Path) -> Path:
    """The same with files of its own, that a test may change."""
    return shutil.copytree(packaged, tmp_path / "copy")


def test_a_release_holds_what_an_appliance_needs(sealed):
    found = {record.path for record in sealed.release.files}
    for name in NAMES:
        place = f"repositories/{name}"
        assert {f"{place}/engines/tensorrt_llm/rank0.safetensors", f"{place}/tokenizer/tokenizer.json"} <= found
        assert f"{place}/models/tensorrt_llm_bls/config.pbtxt" in found
    assert {"recipe.yaml", "blueprint.json", "sbom.json", "prompts/test.jsonl"} <= found
    assert {"licences/draftyard/LICENSE", "licences/models/target/LICENSE"} <= found
    kinds = {name.split("/")[1].split("-")[0] for name in found if name.startswith("receipts/")}
    assert kinds == {"checkpoint", "engine", "repository"}
    assert not [name for name in found if "draft_target" in name], "only the variants that were named"
    assert verify_release(sealed.path, ANYONE).release == sealed.release


def test_engines_are_the_stores_own_files(packaged, sealed):
    for one in sealed.release.variants:
        stored = StoreRoots(packaged / "out").folder(StepKind.REPOSITORY) / one.repository_key
        name = "engines/tensorrt_llm/rank0.safetensors"
        assert (sealed.path / one.repository / name).samefile(stored / name)
    assert [path for path in sealed.path.rglob("*") if path.is_symlink()] == []


def test_nothing_tells_of_the_building_machine(packaged, sealed):
    """Neither where things lay nor who built them, in no file; arguments that were typed as paths are covered."""
    needles = [str(packaged).encode(), str(ROOT).encode(), str(Path.home()).encode() + b"/"]
    read = {record.path: (sealed.path / record.path).read_bytes() for record in sealed.release.files}
    assert [name for name, data in read.items() if any(needle in data for needle in needles)] == []
    receipts = [json.loads(data) for name, data in read.items() if name.startswith("receipts/")]
    assert all(receipt["call"][:2] == ["draftyard", "package"] for receipt in receipts)
    assert {"<path>/recipe.yaml", "<path>"} <= {word for receipt in receipts for word in receipt["call"]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--checkpoint_dir /data/alice/ckpt --workers 1", "--checkpoint_dir <path> --workers 1"),
        (f"/data/alice/out/{'a' * 64}", f"<path>/{'a' * 64}"),
        ("--out=/srv/x", "--out=<path>"),
        ("type=bind,source=/srv/x,target=/checkpoint", "type=bind,source=<path>,target=<path>"),
        ("target: {path: /models/llama}", "target: {path: <path>}"),
        ("../secret/place and ~/here", "<path> and <path>"),
        ("engines/recipes/demo.yaml, 3/4, a/b, N/A", "engines/recipes/demo.yaml, 3/4, a/b, N/A"),
        ("see https://example.com/a/b", "see https://example.com/a/b"),
        ("log: /var/log/build.log", "log: <path>/build.log"),
    ],
)
def test_paths_of_the_machine_are_taken_out(text, shown):
    assert redacted(text) == shown
    assert redacted(redacted(text)) == shown


def test_sealing_again_has_it_already(packaged, sealed):
    again = seal(packaged)
    assert (again.path, again.made) == (sealed.path, False)


@pytest.mark.parametrize("form", ["tar", "tar.zst"])
def test_the_same_inputs_give_the_same_bytes(packaged, sealed, tmp_path, form):
    first = seal(packaged, archive=tmp_path / f"first.{form}").path
    there = tmp_path / "elsewhere"
    shutil.copytree(packaged, there)  # other places and other times of files
    for path in (there / "out").rglob("receipt.json"):
        os.utime(path, (path.stat().st_atime, json.loads("1790000000")))
    for path in (packaged / "out").rglob("receipt.json"):
        os.utime(path, (path.stat().st_atime, json.loads("1790000000")))
    first.unlink()
    first = seal(packaged, archive=tmp_path / f"first.{form}").path
    second = seal(there, archive=tmp_path / f"second.{form}").path
    assert first.read_bytes() == second.read_bytes()


def test_archives_carry_no_time_and_no_owner(packaged, tmp_path):
    archive = seal(packaged, archive=tmp_path / "a.tar").path
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in members} == {(0, 0, 0, "", 0o644)}
    names = [one.name for one in members]
    assert names[0] == "release.json"
    assert names[1:] == sorted(names[1:])


def test_a_variant_that_was_not_packaged_is_refused(tmp_path):
    recipe = write_recipe(tmp_path)
    with pytest.raises(Failure, match="was not made yet") as caught:
        release(recipe, ReleaseOptions(tmp_path / "out"), lambda words: None)
    assert caught.value.code is ExitCode.ENVIRONMENT


def repository_of(root: Path, sealed: Sealed) -> Path:
    return StoreRoots(root / "out").folder(StepKind.REPOSITORY) / sealed.release.variants[0].repository_key


def test_what_changed_in_the_store_is_not_sealed(packaged, sealed, tmp_path):
    root = copied(packaged, tmp_path)
    path = repository_of(root, sealed) / "tokenizer" / "tokenizer.json"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(Failure, match=r"tokenizer/tokenizer\.json has other bytes than were sealed"):
        seal(root, output=tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_a_rank_of_another_build_is_not_sealed(packaged, sealed, tmp_path):
    """A stale rank file has the right name, and even the right size."""
    root = copied(packaged, tmp_path)
    path = repository_of(root, sealed) / "engines" / "tensorrt_llm" / "rank0.safetensors"
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"\1" * size)
    with pytest.raises(Failure, match=r"rank0\.safetensors has other bytes than were sealed"):
        seal(root, variants=NAMES[:1], archive=tmp_path / "release.tar")
    assert not (tmp_path / "release.tar").exists()


@pytest.mark.parametrize(("target", "words"), [("../../blobs/abc", "leads to no file"), ("/etc/hostname", "leads out")])
def test_a_link_that_leaves_the_repository_is_refused(packaged, sealed, tmp_path, target, words):
    root = copied(packaged, tmp_path)
    path = repository_of(root, sealed) / "tokenizer" / "tokenizer.json"
    size = path.stat().st_size
    path.unlink()
    if target == "/etc/hostname":
        target = str(tmp_path / "outside.json")
        Path(target).write_bytes(b" " * size)
        path.symlink_to(target)
        with pytest.raises(Failure, match=words):
            seal(root)
    else:
        path.symlink_to(target)
        with pytest.raises(Failure, match="is missing"):
            seal(root)


def test_a_link_within_the_repository_becomes_a_file(packaged, sealed, tmp_path):
    root = copied(packaged, tmp_path)
    path = repository_of(root, sealed) / "tokenizer" / "tokenizer.json"
    path.rename(path.with_name("blob"))
    path.symlink_to("blob")
    found = seal(root, output=tmp_path / "release")
    place = found.path / found.release.variants[0].repository / "tokenizer" / "tokenizer.json"
    assert place.is_file()
    assert not place.is_symlink()
    assert verify_release(found.path, ANYONE)


def test_a_report_of_other_repositories_is_not_sealed(packaged, tmp_path):
    report = json.loads((ROOT / "tests" / "golden" / "report" / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(Failure, match="was not made with this none-fp32-cpu-tp1"):
        seal(packaged, report=tmp_path)


def test_a_report_is_sealed_with_its_golden_acceptance(packaged, sealed, tmp_path):
    report = json.loads((ROOT / "tests" / "golden" / "report" / "report.json").read_text())
    variant = report["variants"][0]
    report["variants"] = [
        {**variant, "name": one.name, "repository_key": one.repository_key} for one in sealed.release.variants
    ]
    report["reproduce"] = ["draftyard verify /data/alice/recipe.yaml"]
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "acceptance.json").write_text('{"version": 1, "rows": []}\n')
    found = seal(packaged, report=tmp_path, output=tmp_path / "release")
    text = (found.path / "report" / "report.json").read_text()
    assert json.loads(text)["reproduce"] == ["draftyard verify <path>/recipe.yaml"]
    assert (found.path / "report" / "acceptance.json").read_text() == '{"version": 1, "rows": []}\n'


def test_the_image_is_pinned_by_digest(packaged, tmp_path):
    with pytest.raises(Failure, match="names no digest"):
        seal(packaged, image="tritonserver:26.04")
    with pytest.raises(Failure, match="without the image it holds"):
        seal(packaged, image_archive=tmp_path / "image.tar")
    (tmp_path / "image.tar").write_bytes(b"layers")
    digest = f"sha256:{'c' * 64}"
    found = seal(
        packaged, image=f"tritonserver@{digest}", image_archive=tmp_path / "image.tar", output=tmp_path / "release"
    )
    assert found.release.image.digest == digest
    assert (found.path / "images" / "image.tar").read_bytes() == b"layers"


def test_the_list_of_parts_has_the_structure_of_cyclonedx(sealed):
    """CycloneDX 1.6: required keys, unique references, dependencies that lead to components."""
    bill = json.loads((sealed.path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(references) == len(set(references))
    assert set(bill["dependencies"][0]["dependsOn"]) == set(references)
    names = {one["name"].lower(): one for one in bill["components"]}
    assert {"numpy", "pydantic", "tokenizers", "target", "tensorrt-llm"} <= set(names)
    assert names["pydantic"]["purl"].startswith("pkg:pypi/pydantic@")
    assert {"type", "name", "version", "bom-ref"} <= set(bill["metadata"]["component"])
    assert not {"timestamp"} & set(bill["metadata"])
    assert all(one["licenses"] for one in bill["components"] if one["bom-ref"].startswith("pkg:"))


def test_the_list_of_parts_holds_against_the_published_schema(sealed):
    validation = pytest.importorskip("cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str((sealed.path / "sbom.json").read_text()) is None


def test_a_lock_file_without_its_wheels_is_refused(packaged, tmp_path):
    (tmp_path / "wheels").mkdir()
    with pytest.raises(Failure, match="holds no wheel"):
        seal(packaged, wheels=tmp_path / "wheels")


@pytest.mark.slow
def test_the_tool_is_installed_from_the_bundle_alone(packaged, tmp_path):
    """No index, no network name: the tool's own wheel out of the release, checked by its hash."""
    wheels = tmp_path / "wheels"
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=90)
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==1.26.4\n")
    with pytest.raises(Failure, match=r"no wheel of numpy 1\.26\.4"):
        seal(packaged, wheels=wheels, requirements=lock)
    lock.write_text("# nothing else\n")
    found = seal(packaged, wheels=wheels, requirements=lock, output=tmp_path / "release")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    place = found.path / "wheels"
    argv = ["install", "-q", "--no-index", "--no-deps", "--require-hashes", "--find-links", str(place)]
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", *argv, "-r", str(place / "requirements.txt")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(pip, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [str(tmp_path / "venv/bin/draftyard"), "--version"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert said.stdout == f"draftyard {__version__}\n"


def test_the_command_seals(packaged, tmp_path, capsys):
    words = ["release", str(packaged / "recipe.yaml"), "--out", str(packaged / "out"), "--variant", NAMES[0]]
    assert main([*words, "--archive", str(tmp_path / "a.tar.zst"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["made"] is True
    assert main([*words, "--archive", str(tmp_path / "a.tar.zst")]) == 2
    assert main([*words, "--output", str(tmp_path / "release")]) == 0
    assert "not signed" in (shown := capsys.readouterr()).err
    assert shown.out == f"sealed  {tmp_path / 'release'}\n"
    assert Release.model_validate_json((tmp_path / "release" / "release.json").read_bytes()).variants[0].gpus == 0
    assert main([*words, "--variant", "nothing"]) == 2
