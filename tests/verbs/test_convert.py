"""Shards merged back are the source, whatever the cut; what would be wrong is refused and leaves nothing."""

import json
import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.fakes.tiny_model import config_of, random_weights, split_model, write_model

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.network import Precision
from draftyard.nouns.tensor import TensorType
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.shards import Mapping2D, checkpoint_name, holds, unshard
from draftyard.rules.trtllm import checkpoint_config, expected_tensors
from draftyard.verbs import convert, rank_writing
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace


def step_for(directory: Path, precision: Precision, tp_size: int = 1, pp_size: int = 1) -> Step:
    source = inspect(directory)
    config = checkpoint_config(source.network, precision, tp_size, pp_size)
    return Step(StepKind.CHECKPOINT, "c", {"role": "target", "config": config}, (source.digest,), {}, (str(directory),))


def workplace_for(directory: Path, staging: Path, shares: list[float] | None = None) -> Workplace:
    staging.mkdir()

    def progress(share: float, words: str) -> None:
        if shares is not None:
            shares.append(share)

    def no_input(key: str) -> Path:
        raise KeyError(key)

    return Workplace(staging, no_input, (directory,), progress)


def converted(directory: Path, staging: Path, precision: Precision, tp_size: int = 1, pp_size: int = 1) -> Path:
    make_checkpoint(step_for(directory, precision, tp_size, pp_size), workplace_for(directory, staging))
    return staging


def merged(checkpoint: Path, directory: Path, tp_size: int, pp_size: int) -> dict[str, np.ndarray]:
    """The source tensors, put together from all rank files."""
    network = inspect(directory).network
    mapping = Mapping2D(tp_size, pp_size)
    files = [load_file(checkpoint / f"rank{rank}.safetensors") for rank in range(mapping.world_size)]
    found: dict[str, np.ndarray] = {}
    for rule in FAMILIES[network.family].rules(network):
        for stage in range(pp_size):
            if not holds(rule, network, mapping, stage):
                continue
            name = checkpoint_name(rule, network, pp_size, stage)
            pieces = [files[mapping.rank(stage, tp_rank)][name] for tp_rank in range(tp_size)]
            for part, whole in zip(rule.parts, unshard(rule, pieces, network), strict=True):
                if part.name in found:
                    np.testing.assert_array_equal(found[part.name], whole)
                found[part.name] = whole
    return found


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("tied", [True, False])
def test_shards_merge_back_to_the_source(tmp_path: Path, tied: bool, tp_size: int, pp_size: int) -> None:
    config = config_of(tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    weights = random_weights(config)
    directory = write_model(tmp_path / "m", config, weights)
    checkpoint = converted(directory, tmp_path / "c", Precision.FP32, tp_size, pp_size)
    back = merged(checkpoint, directory, tp_size, pp_size)
    assert set(back) == set(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(back[name], values)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_every_family_converts(tmp_path: Path, model_type: str) -> None:
    config = config_of(model_type, head_dim=16)
    weights = random_weights(config)
    directory = write_model(tmp_path / "m", config, weights)
    checkpoint = converted(directory, tmp_path / "c", Precision.FP32, 2)
    back = merged(checkpoint, directory, 2, 1)
    assert set(back) == set(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(back[name], values)
    assert json.loads((checkpoint / "config.json").read_text())["head_size"] == 16


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_pieces_of_a_tensor_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, precision: Precision
) -> None:
    """A few rows at a time, cut anywhere, page cache given back or not: the bytes are those of whole tensors."""
    directory = write_model(tmp_path / "m", config_of(model_type, num_key_value_heads=2))
    whole = converted(directory, tmp_path / "whole", precision, 4)
    monkeypatch.setattr(rank_writing, "_CHUNK_BYTES", 7 * 32 * 4)
    monkeypatch.setattr(rank_writing, "_is_large", lambda conversion, staging: True)
    pieces = converted(directory, tmp_path / "pieces", precision, 4)
    for rank in range(4):
        name = f"rank{rank}.safetensors"
        assert (pieces / name).read_bytes() == (whole / name).read_bytes()


def test_a_model_is_large_beside_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_model(tmp_path / "m")
    asked: list[bool] = []
    run = rank_writing._run

    def noted(tasks: Sequence[rank_writing._Task], large: bool, workplace: Workplace) -> rank_writing.Losses:
        asked.append(large)
        return run(tasks, large, workplace)

    monkeypatch.setattr(rank_writing, "_run", noted)
    converted(directory, tmp_path / "c1", Precision.FP16)
    host = rank_writing.read_host(tmp_path)
    monkeypatch.setattr(rank_writing, "read_host", lambda staging: replace(host, available_bytes=100_000))
    converted(directory, tmp_path / "c2", Precision.FP16)
    assert asked == [False, True]


def test_memory_is_not_that_of_the_largest_tensor(tmp_path: Path) -> None:
    """Each of a few threads holds a piece of a megabyte, as read and as cast."""
    directory = write_model(tmp_path / "m", config_of(vocab_size=240_000, num_hidden_layers=1))
    step, workplace = step_for(directory, Precision.FP16, 2), workplace_for(directory, tmp_path / "c")
    tracemalloc.start()
    make_checkpoint(step, workplace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24_000_000, "the embedding alone has 30 MB"


def test_an_interrupt_stops_every_thread_and_leaves_no_file(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    step, workplace = step_for(directory, Precision.FP16, 2), workplace_for(directory, tmp_path / "c")

    def interrupt(share: float, words: str) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        make_checkpoint(step, replace(workplace, progress=interrupt))
    assert threading.active_count() == before
    assert list((tmp_path / "c").iterdir()) == []


def test_one_rank_by_hand(tmp_path: Path) -> None:
    """The order of rows, spelt out without the package's own tables."""
    config = config_of(num_key_value_heads=2)
    weights = random_weights(config)
    directory = write_model(tmp_path / "m", config, weights)
    checkpoint = converted(directory, tmp_path / "c", Precision.FP32, 4)
    rank = load_file(checkpoint / "rank3.safetensors")
    layer = "model.layers.1"
    attention = [weights[f"{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
    # Rank 3 of 4 has query head 3 and, as there are two KV heads, the second of them.
    by_hand = np.concatenate([attention[0][24:32], attention[1][8:16], attention[2][8:16]])
    ours = "transformer.layers.1"
    np.testing.assert_array_equal(rank[f"{ours}.attention.qkv.weight"], by_hand)
    np.testing.assert_array_equal(rank[f"{ours}.mlp.fc.weight"], weights[f"{layer}.mlp.gate_proj.weight"][36:])
    np.testing.assert_array_equal(rank[f"{ours}.mlp.gate.weight"], weights[f"{layer}.mlp.up_proj.weight"][36:])
    np.testing.assert_array_equal(rank[f"{ours}.mlp.proj.weight"], weights[f"{layer}.mlp.down_proj.weight"][:, 36:])
    dense = weights[f"{layer}.self_attn.o_proj.weight"][:, 24:]
    np.testing.assert_array_equal(rank[f"{ours}.attention.dense.weight"], dense)
    # Vocabulary 50 is padded to 52 with rows of zeros: the last rank has 11 of its 13 rows from the source.
    np.testing.assert_array_equal(rank["lm_head.weight"][:11], weights["lm_head.weight"][39:])
    np.testing.assert_array_equal(rank["lm_head.weight"][11:], np.zeros((2, 32), np.float32))


@pytest.mark.parametrize(("tp_size", "pp_size", "written"), [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_a_tied_head_is_written_only_where_it_must_be(
    tmp_path: Path, tp_size: int, pp_size: int, written: bool
) -> None:
    directory = write_model(tmp_path / "m", config_of(tie_word_embeddings=True))
    checkpoint = converted(directory, tmp_path / "c", Precision.FP16, tp_size, pp_size)
    last = load_file(checkpoint / f"rank{tp_size * pp_size - 1}.safetensors")
    assert ("lm_head.weight" in last) is written


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_the_head_is_found_in_every_precision(tmp_path: Path, model_type: str, precision: Precision) -> None:
    """NVIDIA/TensorRT-LLM#2677: one small tied model, and another message on each route."""
    weights = random_weights(config_of(model_type, tie_word_embeddings=True))
    directory = write_model(tmp_path / "tied", config_of(model_type, tie_word_embeddings=True), weights)
    untied = config_of(model_type, tie_word_embeddings=False)
    other = write_model(
        tmp_path / "untied", untied, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    )
    first = converted(directory, tmp_path / "c1", precision, 2)
    second = converted(other, tmp_path / "c2", precision, 2)
    for rank in range(2):
        assert (first / f"rank{rank}.safetensors").read_bytes() == (second / f"rank{rank}.safetensors").read_bytes()


@pytest.mark.parametrize("change", ["lacking", "surplus"])
def test_what_is_promised_and_what_is_made_are_compared_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """NVIDIA/TensorRT-LLM#1677: scales that the config asks for, and that no route makes."""
    directory = write_model(tmp_path / "m")
    step = step_for(directory, Precision.FP16)
    promised = convert.promised_tensors
    names = [f"transformer.layers.{layer}.mlp.fc.per_channel_scale" for layer in range(12)]

    def changed(config: Mapping[str, Json], rank: int) -> dict[str, tuple[TensorType, tuple[int, ...]]]:
        found = dict(promised(config, rank))
        if change == "surplus":
            del found["transformer.ln_f.weight"]
            return found
        return {**found, **dict.fromkeys(names, (TensorType.F32, (1,)))}

    monkeypatch.setattr(convert, "promised_tensors", changed)
    with pytest.raises(Failure) as caught:
        make_checkpoint(step, workplace_for(directory, tmp_path / "c"))
    if change == "surplus":
        assert caught.value.message == "rank 0: not produced: none; not expected: transformer.ln_f.weight"
    else:
        assert f"not produced: {sorted(names)[0]}" in caught.value.message
        assert "and 2 more (12 in all)" in caught.value.message
    assert list((tmp_path / "c").iterdir()) == []


def test_shards_and_one_file_give_the_same_bytes(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    first = converted(write_model(tmp_path / "one", None, weights), tmp_path / "c1", Precision.FP16, 2)
    directory = write_model(tmp_path / "two", None, weights)
    split_model(directory, weights, 3)
    second = converted(directory, tmp_path / "c2", Precision.FP16, 2)
    for name in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_the_config_promises_what_the_files_hold(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", config_of("qwen2"))
    checkpoint = converted(directory, tmp_path / "c", Precision.FP16, 2)
    config = json.loads((checkpoint / "config.json").read_text())
    for rank in range(2):
        tensors = load_file(checkpoint / f"rank{rank}.safetensors")
        kinds = {name: (TensorType.F16, tensor.shape) for name, tensor in tensors.items()}
        assert kinds == expected_tensors(config, rank)
    assert "transformer.layers.0.attention.qkv.bias" in tensors
    assert "transformer.layers.0.attention.dense.bias" not in tensors


BAD_VALUES = {
    "overflow": ((70000.0, -1e9), Precision.FP16, "2 finite values of F32 become infinite in F16", "bf16"),
    "overflow-bf16": ((3.4028235e38,), Precision.BF16, "1 finite values of F32 become infinite in BF16", "fp32"),
    "infinite": ((float("inf"), -float("inf"), 1.0), Precision.FP32, "2 values in model.safetensors are NaN", "fetch"),
    "not-a-number": ((float("nan"),), Precision.FP32, "1 values in model.safetensors are NaN or infinite", "fetch"),
    "infinite-cast": ((float("inf"),), Precision.FP16, "1 values in model.safetensors are NaN", "fetch"),
    "not-a-number-cast": ((float("nan"), 1.0), Precision.BF16, "1 values in model.safetensors are NaN", "fetch"),
}


@pytest.mark.parametrize("kind", BAD_VALUES)
def test_a_bad_value_names_tensor_and_count_and_leaves_no_file(tmp_path: Path, kind: str) -> None:
    values, precision, message, hint = BAD_VALUES[kind]
    weights = random_weights(config_of())
    weights["model.layers.1.mlp.down_proj.weight"][0, : len(values)] = values
    directory = write_model(tmp_path / "m", None, weights)
    step = step_for(directory, precision)
    workplace = workplace_for(directory, tmp_path / "c")
    with pytest.raises(Failure) as caught:
        make_checkpoint(step, workplace)
    assert f"model.layers.1.mlp.down_proj.weight: {message}" in caught.value.message
    assert caught.value.code is ExitCode.WORK_FAILED
    assert hint in caught.value.hint
    assert list((tmp_path / "c").iterdir()) == []


def test_bad_values_are_found_without_a_cast(tmp_path: Path) -> None:
    """A narrow model whose values go over as they are is looked at all the same."""
    weights = {name: value.astype(np.float16) for name, value in random_weights(config_of()).items()}
    weights["model.norm.weight"][3] = np.inf
    directory = write_model(tmp_path / "m", None, weights)
    with pytest.raises(Failure, match=r"model\.norm\.weight: 1 values in model\.safetensors are NaN or infinite"):
        converted(directory, tmp_path / "c", Precision.FP16)


def test_small_values_are_kept_and_those_that_vanish_are_counted(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name][0, :4] = (6e-8, -2e-7, 1e-9, -1e-20)
    directory = write_model(tmp_path / "m", None, weights)
    notes = make_checkpoint(step_for(directory, Precision.FP16), workplace_for(directory, tmp_path / "c"))
    back = merged(tmp_path / "c", directory, 1, 1)[name][0, :4]
    assert (back[:2] != 0).all(), "subnormal numbers of the new type are kept"
    np.testing.assert_array_equal(back, weights[name][0, :4].astype(np.float16))
    assert "2 weights too small for F16 became zero" in notes


def test_too_small_a_disk_is_found_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_model(tmp_path / "m")
    step = step_for(directory, Precision.FP32)
    workplace = workplace_for(directory, tmp_path / "c")
    monkeypatch.setattr(convert, "free_bytes", lambda staging: 1000)
    with pytest.raises(Failure, match=r"needs \d+ bytes, 1000 are free") as caught:
        make_checkpoint(step, workplace)
    assert caught.value.code is ExitCode.ENVIRONMENT
    monkeypatch.undo()
    make_checkpoint(step, workplace)
    needed = int(caught.value.message.split()[3])
    assert (tmp_path / "c" / "rank0.safetensors").stat().st_size == needed


def test_a_source_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    step = step_for(directory, Precision.FP32)
    weights = random_weights(config_of(), seed=1)
    write_model(directory, None, weights)
    with pytest.raises(Failure, match="changed since the plan"):
        make_checkpoint(step, workplace_for(directory, tmp_path / "c"))


def test_progress_rises_to_one_and_notes_count(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", config_of(tie_word_embeddings=True))
    shares: list[float] = []
    notes = make_checkpoint(step_for(directory, Precision.FP16), workplace_for(directory, tmp_path / "c", shares))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert notes[0] == "29 source tensors consumed, 0 ignored"
    assert "lm_head: tied" in notes
