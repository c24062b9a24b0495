"""A repository is its engine, its tokenizer and five models; what a server would trip over is refused first."""

import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.tiny_model import write_tokenizer
from tests.fakes.triton_repository import (
    SPECULATORS,
    repository_step,
    scripted_backends,
    workplace,
    write_engine,
)

from draftyard.doors import shipped_files
from draftyard.doors.repository_files import read_repository
from draftyard.doors.triton import embedded_server
from draftyard.nouns.errors import Failure
from draftyard.nouns.repository import RepositoryPlan
from draftyard.rules.triton_repository import draw_repository
from draftyard.verbs.package import check_repository, make_repository

GUESTS = ("postprocessing", "preprocessing", "tensorrt_llm_bls")


def packaged(tmp_path: Path, name: str = "none", tp_size: int = 1) -> Path:
    """The repository in `tmp_path`/repository, with its model and engine beside it."""
    tmp_path.mkdir(exist_ok=True)
    model = write_engine(tmp_path, SPECULATORS[name], tp_size)
    make_repository(repository_step(model, SPECULATORS[name]), workplace(tmp_path, "repository", model))
    return tmp_path / "repository"


@pytest.mark.parametrize("name", SPECULATORS)
def test_a_repository_holds_models_tokenizer_and_engine(tmp_path, name):
    repository = packaged(tmp_path, name, tp_size=2)
    assert sorted(path.name for path in repository.iterdir()) == ["engines", "models", "tokenizer"]
    tokenizer = sorted(path.name for path in (repository / "tokenizer").iterdir())
    assert tokenizer == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert not (repository / "tokenizer/tokenizer.json").samefile(tmp_path / "model/tokenizer.json")
    engine = repository / "engines/tensorrt_llm"
    for path in (tmp_path / "engine").rglob("*.*"):
        assert (engine / path.relative_to(tmp_path / "engine")).samefile(path)
    assert (engine / "draft/config.json").exists() == (name == "draft_target")


def test_models_are_the_drawn_ones_with_their_guests(tmp_path):
    repository = packaged(tmp_path)
    plan = RepositoryPlan.model_validate(repository_step(tmp_path / "model", None).parameters["plan"])
    found = {model.name: model for model in read_repository(repository).models}
    assert found == {model.name: model for model in draw_repository(plan).models}
    for guest in GUESTS:
        assert (repository / "models" / guest / "1" / "model.py").is_file()
        assert (repository / "models" / guest / "1" / "tokenizer_files.py").is_file()
    for model in ("ensemble", "tensorrt_llm"):
        assert [path.name for path in (repository / "models" / model / "1").iterdir()] == [".keep"]
    assert plan.end_ids == (2, 3)


def test_the_receipt_of_the_engine_stays_behind(tmp_path):
    model = write_engine(tmp_path, None)
    (tmp_path / "engine/receipt.json").write_text("{}")
    notes = make_repository(repository_step(model, None), workplace(tmp_path, "repository", model))
    assert notes[0] == "2 engine files linked"
    assert not (tmp_path / "repository/engines/tensorrt_llm/receipt.json").exists()


def test_an_engine_without_rank_files_is_refused(tmp_path):
    model = write_engine(tmp_path, None, tp_size=2)
    (tmp_path / "engine/rank1.safetensors").unlink()
    with pytest.raises(Failure, match=r"the engine has no rank1\.safetensors"):
        make_repository(repository_step(model, None), workplace(tmp_path, "repository", model))


@pytest.mark.parametrize(
    ("block", "key", "value", "message"),
    [
        ("build_config", "max_batch_size", 1, "max_batch_size: the repository asks for 2, the engine was built with 1"),
        ("build_config", "max_seq_len", 63, "max_seq_len: the repository asks for 64"),
        ("build_config", "max_draft_len", 2, "max_draft_len: the repository says 0, the engine 2"),
        ("pretrained_config", "logits_dtype", "float16", "logits_dtype: the repository says float32"),
        ("draftyard", "kv_cache_tokens", 9, "kv_cache_tokens: the repository says 128, the engine 9"),
        ("draftyard", "speculator", {"kind": "ngram"}, "speculator: the repository says none, the engine ngram"),
    ],
)
def test_an_engine_of_another_size_is_refused(tmp_path, block, key, value, message):
    model = write_engine(tmp_path, None)
    path = tmp_path / "engine/config.json"
    config = json.loads(path.read_text())
    config[block][key] = value
    path.unlink()
    path.write_text(json.dumps(config))
    with pytest.raises(Failure, match=message):
        make_repository(repository_step(model, None), workplace(tmp_path, "repository", model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.8.0"}, "built by TensorRT-LLM 0.8.0, the server's backend is 1.2.1"),
        ({"kv_cache_type": "CONTINUOUS"}, "no paged KV cache"),
        ({"plugin_config": {"paged_kv_cache": False}}, "no paged KV cache"),
        ({"plugin_config": {"remove_input_padding": False}}, "takes padded input"),
    ],
)
def test_an_engine_of_another_version_or_batching_is_refused(tmp_path, change, message):
    model = write_engine(tmp_path, None)
    path = tmp_path / "engine/config.json"
    config = json.loads(path.read_text())
    (config if "version" in change else config["build_config"]).update(change)
    path.unlink()
    path.write_text(json.dumps(config))
    step = replace(repository_step(model, None), toolchain={"tensorrt_llm": "1.2.1"})
    with pytest.raises(Failure, match=message):
        make_repository(step, workplace(tmp_path, "repository", model))


def test_a_larger_engine_serves_what_was_asked(tmp_path):
    model = write_engine(tmp_path, None)
    path = tmp_path / "engine/config.json"
    config = json.loads(path.read_text())
    config["build_config"]["max_batch_size"] = 64
    path.unlink()
    path.write_text(json.dumps(config))
    make_repository(repository_step(model, None), workplace(tmp_path, "repository", model))
    assert {model.max_batch_size for model in read_repository(tmp_path / "repository").models} == {2}


def test_a_tokenizer_changed_since_is_refused(tmp_path):
    model = write_engine(tmp_path, None)
    step = repository_step(model, None)
    write_tokenizer(model, changes={7: "other"})
    with pytest.raises(Failure, match="the tokenizer changed since"):
        make_repository(step, workplace(tmp_path, "repository", model))


def test_changed_guests_are_refused_and_change_the_digest(tmp_path, monkeypatch):
    model = write_engine(tmp_path, None)
    step = repository_step(model, None)
    guests = tmp_path / "root/triton_repo/models"
    (guests / "preprocessing/1").mkdir(parents=True)
    (guests / "preprocessing/1/model.py").write_text("one")
    monkeypatch.setattr(shipped_files, "ROOTS", (tmp_path / "root",))
    before = shipped_files.guests_digest()
    (guests / "preprocessing/1/__pycache__").mkdir()
    (guests / "preprocessing/1/__pycache__/model.pyc").write_text("x")
    assert shipped_files.guests_digest() == before
    (guests / "preprocessing/1/model.py").write_text("two")
    assert shipped_files.guests_digest() != before
    with pytest.raises(Failure, match=r"guests .* changed since"):
        make_repository(step, workplace(tmp_path, "repository", model))


def test_guests_are_found_in_a_wheel_and_their_absence_is_a_failure(tmp_path, monkeypatch):
    wheel = tmp_path / "site-packages/draftyard"
    (wheel / "triton_repo/models").mkdir(parents=True)
    monkeypatch.setattr(shipped_files, "ROOTS", (wheel, tmp_path))
    assert shipped_files.guests_directory() == wheel / "triton_repo/models"
    with pytest.raises(Failure, match="triton_repo/backends is missing from the installation"):
        shipped_files.backends_directory()
    (wheel / "triton_repo/models/guests.json").write_text('{"preprocessing": ["gone.py"]}')
    (wheel / "triton_repo/models/preprocessing/1").mkdir(parents=True)
    with pytest.raises(Failure, match=r"the guest preprocessing lacks gone\.py"):
        shipped_files.copy_guest("preprocessing", tmp_path / "1")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tensorrt_llm/config.pbtxt", "max_batch_size: 2", "max_batch_size: ${size}", r"config.pbtxt: \d+:\d+"),
        ("tensorrt_llm/config.pbtxt", '"guaranteed_no_evict"', '"${policy}"', r"config.pbtxt:\d+: .*policy"),
        ("tensorrt_llm/config.pbtxt", '"engines/tensorrt_llm"', '"engines/other"', "names engines/other, which is no"),
        ("tensorrt_llm/config.pbtxt", 'name: "tensorrt_llm"', 'name: "copy"', "tensorrt_llm calls itself copy"),
        ("ensemble/config.pbtxt", "max_batch_size: 2", "max_batch_size: 4", "max_batch_size is 4, that of"),
        ("preprocessing/config.pbtxt", "TYPE_INT64", "TYPE_INT64", ""),
    ],
)
def test_an_edited_repository_is_found_out(tmp_path, file, old, new, message):
    repository = packaged(tmp_path)
    plan = RepositoryPlan.model_validate(repository_step(tmp_path / "model", None).parameters["plan"])
    path = repository / "models" / file
    path.write_text(path.read_text().replace(old, new))
    if message:
        with pytest.raises(Failure, match=message):
            check_repository(repository, draw_repository(plan))
    else:
        check_repository(repository, draw_repository(plan))


@pytest.mark.parametrize("stray", ["tensorrt_llm/.ipynb_checkpoints", "tensorrt_llm/2", ".git"])
def test_stray_entries_are_found(tmp_path, stray):
    repository = packaged(tmp_path)
    (repository / "models" / stray).mkdir()
    with pytest.raises(Failure, match="is not a model"):
        read_repository(repository)


def post(url: str, model: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://{url}/v2/models/{model}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return dict(json.loads(answer.read()))


BODY: dict[str, object] = {"text_input": "w8 w9 w10", "max_tokens": 4, "stream": False}


@pytest.mark.server
def test_a_repository_loads_in_the_real_server_and_stays_as_it_was(tmp_path):
    repository = packaged(tmp_path)
    before = sorted(repository.rglob("*"))
    backends = scripted_backends(tmp_path / "backends")
    with embedded_server(repository, log_path=tmp_path / "log.txt", backends=backends) as server:
        entry = post(server.address.http_url, "tensorrt_llm_bls", BODY)
        assert entry["output_token_ids"] == [14, 35, 9, 23]
        assert entry["finish_reason"] == "length"
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server.address.http_url, "tensorrt_llm_bls", {**BODY, "max_tokens": 63})
        assert "63" in caught.value.read().decode()
    assert sorted(repository.rglob("*")) == before


@pytest.mark.server
@pytest.mark.slow
def test_speculation_in_the_reference_engine_changes_no_token_in_either_entry(tmp_path):
    texts = set()
    for name in ("none", "draft_target"):
        repository = packaged(tmp_path / name, name)
        with embedded_server(repository, log_path=tmp_path / f"{name}.log") as server:
            body = {**BODY, "max_tokens": 12}
            entry = post(server.address.http_url, "tensorrt_llm_bls", body)
            ensemble = post(server.address.http_url, "ensemble", body)
            texts |= {entry["text_output"], ensemble["text_output"]}
            assert (entry["total_draft_tokens"] > 0) == (name == "draft_target")
    assert len(texts) == 1
