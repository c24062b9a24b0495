"""What people's model directories get wrong: the smallest directory of each kind, and the sentence it earns."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fakes.tiny_model import config_of, random_weights, split_model, write_index, write_model, write_tokenizer

from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import Limits
from draftyard.nouns.tensor import TensorType
from draftyard.verbs.inspect import inspect, pair

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def refused(directory: Path) -> str:
    with pytest.raises(Failure) as caught:
        inspect(directory)
    assert caught.value.hint
    return caught.value.message


def change(directory: Path, file: str, **fields: object) -> None:
    """Change keys of a JSON file; None removes one."""
    document = {**json.loads((directory / file).read_text()), **fields}
    (directory / file).write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def test_a_sound_directory(tmp_path: Path) -> None:
    source = inspect(write_model(tmp_path / "m"))
    assert source.network.kv_heads == 2
    assert source.network.head_size == 8
    assert source.weight_type is TensorType.F32
    assert source.end_ids == (2, 3)
    assert source.tokenizer.bos_id == 1
    assert source.tokenizer.eos_id == 2
    assert source.tokenizer.pad_id is None
    assert source.tokenizer.adds_bos is False
    assert source.tokenizer.largest_id == 47
    assert source.parameter_count == sum(value.size for value in random_weights(config_of()).values())


def test_the_digest_is_of_contents_alone(tmp_path: Path) -> None:
    first = inspect(write_model(tmp_path / "one"), tmp_path / "cache")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "README.md").write_text("not part of the model")
    second = inspect(tmp_path / "two", tmp_path / "cache")
    assert second.digest == first.digest
    assert inspect(tmp_path / "one").digest == first.digest
    change(tmp_path / "two", "generation_config.json", eos_token_id=[2])
    assert inspect(tmp_path / "two", tmp_path / "cache").digest != first.digest


def test_known_hashes_are_not_made_again(tmp_path: Path) -> None:
    directory, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    before = inspect(directory, cache)
    known = json.loads((cache / "content-hashes.json").read_text())
    identity = next(key for key in known if "/model.safetensors|" in key)
    known[identity] = "0" * 64
    (cache / "content-hashes.json").write_text(json.dumps(known))
    assert inspect(directory, cache).digest != before.digest, "the remembered hash must be used"
    (cache / "content-hashes.json").write_text("broken")
    assert inspect(directory, cache).digest == before.digest


# --- heads -----------------------------------------------------------------------------------------------------------


def test_a_tied_model_needs_no_head(tmp_path: Path) -> None:
    source = inspect(write_model(tmp_path / "m", config_of(tie_word_embeddings=True)))
    assert source.network.tied_head
    assert "lm_head: tied" in source.notes


@pytest.mark.parametrize("tied", [False, None])
def test_a_lost_head_is_not_tied_in_silence(tmp_path: Path, tied: bool | None) -> None:
    weights = random_weights(config_of())
    del weights[HEAD]
    directory = write_model(tmp_path / "m", config_of(tie_word_embeddings=tied), weights)
    assert "lm_head.weight missing and embeddings are not tied" in refused(directory)


def test_a_lost_embedding_is_missed_too(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    del weights[EMBEDDING]
    assert f"needs: {EMBEDDING}" in refused(write_model(tmp_path / "m", config_of(), weights))


def test_a_tied_model_may_carry_an_equal_head(tmp_path: Path) -> None:
    config = config_of(tie_word_embeddings=True)
    weights = random_weights(config)
    weights[HEAD] = weights[EMBEDDING].copy()
    source = inspect(write_model(tmp_path / "m", config, weights))
    assert "lm_head.weight is a copy of the embedding and is ignored" in source.notes
    weights[HEAD][-1, -1] += 1
    assert "differs from model.embed_tokens.weight" in refused(write_model(tmp_path / "m", config, weights))


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama",\n}', "config.json is no valid JSON at line 2 column 1"),
        ("[]", "config.json holds no JSON object"),
        ("[" * 100_000, "config.json is nested too deeply"),
        ('{"rms_norm_eps": Infinity}', "Infinity is no JSON number"),
        (None, "there is no config.json"),
    ],
)
def test_an_unreadable_config_is_never_a_warning(tmp_path: Path, text: str | None, message: str) -> None:
    directory = write_model(tmp_path / "m")
    (directory / "config.json").unlink()
    if text is not None:
        (directory / "config.json").write_text(text)
    assert message in refused(directory)


def test_an_absurd_size_is_refused_before_anything_is_derived_from_it(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    change(directory, "config.json", num_hidden_layers=1_000_000_000)
    assert "num_hidden_layers is 1000000000" in refused(directory)


def test_an_unknown_architecture_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    change(directory, "config.json", model_type="t5")
    assert "model_type 't5' is not supported; supported: llama, mistral, mixtral, qwen2, qwen3" in refused(directory)


@pytest.mark.parametrize(
    ("block", "method"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"bits": 3}, "an unnamed method"),
    ],
)
def test_quantised_sources_are_refused_by_name(tmp_path: Path, block: dict[str, object], method: str) -> None:
    directory = write_model(tmp_path / "m")
    change(directory, "config.json", quantization_config=block)
    assert f"quantised with {method}" in refused(directory)


@pytest.mark.parametrize(
    ("ending", "method"), [("qweight", "GPTQ or AWQ"), ("qzeros", "GPTQ or AWQ"), ("weight.absmax", "bitsandbytes")]
)
def test_packed_weights_tell_their_method_where_no_config_does(tmp_path: Path, ending: str, method: str) -> None:
    weights = random_weights(config_of())
    weights[f"model.layers.0.self_attn.q_proj.{ending}"] = np.zeros((4, 4), np.uint8)
    assert f"no plain weight (packed by {method})" in refused(write_model(tmp_path / "m", None, weights))


def test_head_dim_must_agree_with_the_rows(tmp_path: Path) -> None:
    config = config_of(hidden_size=80, head_dim=32, num_attention_heads=4)
    directory = write_model(tmp_path / "m", config)
    assert inspect(directory).network.head_size == 32
    change(directory, "config.json", head_dim=None)
    message = refused(directory)
    assert (
        "model.layers.0.self_attn.q_proj.weight (and 2 more layers) has shape [128, 80], expected [80, 80]" in message
    )
    assert "(num_attention_heads 4, head size 20, hidden_size 80)" in message


def test_qwen3_needs_head_dim(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", config_of("qwen3"))
    change(directory, "config.json", head_dim=None)
    assert "config.json has no head_dim" in refused(directory)


# --- files -----------------------------------------------------------------------------------------------------------


def sharded(tmp_path: Path) -> tuple[Path, dict[str, str], dict[str, np.ndarray]]:
    weights = random_weights(config_of())
    directory = write_model(tmp_path / "m", None, weights)
    return directory, split_model(directory, weights, 3), weights


def test_three_causes_of_a_missing_tensor_have_three_messages(tmp_path: Path) -> None:
    directory, where, _ = sharded(tmp_path)
    name = "model.norm.weight"

    write_index(directory, {key: value for key, value in where.items() if key != name})
    message = refused(directory)
    assert f"no file holds the tensors that LlamaForCausalLM needs: {name}" in message
    assert f"{where[name]} holds {name}, which model.safetensors.index.json does not map to it" in message

    other = next(file for file in where.values() if file != where[name])
    write_index(directory, {**where, name: other})
    assert f"maps {name} to {other}, whose header lacks it" in refused(directory)

    write_index(directory, {**where, name: "model-00009-of-00009.safetensors"})
    message = refused(directory)
    assert f"the shard model-00009-of-00009.safetensors is missing; it holds {name}" in message
    assert "no file holds" not in message


def test_a_shard_that_was_not_fetched_lists_its_tensors(tmp_path: Path) -> None:
    directory, where, _ = sharded(tmp_path)
    absent = "model-00002-of-00003.safetensors"
    (directory / absent).unlink()
    message = refused(directory)
    held = sorted(name for name, file in where.items() if file == absent)
    assert f"the shard {absent} is missing; it holds {', '.join(held)}" in message


def test_the_index_wins_over_a_stray_file(tmp_path: Path) -> None:
    directory, _, weights = sharded(tmp_path)
    save_file({name: value.astype(np.uint8) for name, value in weights.items()}, directory / "model.safetensors")
    source = inspect(directory)
    assert {tensor.type for tensor in source.tensors} == {TensorType.F32}
    assert any("ignored: model.safetensors" in note for note in source.notes)


def test_duplicates_that_no_index_settles(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    shutil.copy(directory / "model.safetensors", directory / "other.safetensors")
    assert "both hold lm_head.weight" in refused(directory)


def test_shards_without_an_index(tmp_path: Path) -> None:
    directory, _, _ = sharded(tmp_path)
    (directory / "model.safetensors.index.json").unlink()
    assert "without model.safetensors.index.json" in refused(directory)


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    directory, where, _ = sharded(tmp_path)
    write_index(directory, {**where, HEAD: "../elsewhere.safetensors"})
    assert "'../elsewhere.safetensors', which is no file of this directory" in refused(directory)


def test_a_pointer_instead_of_a_shard(tmp_path: Path) -> None:
    directory, _, _ = sharded(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4976698672\n"
    (directory / "model-00001-of-00003.safetensors").write_text(pointer)
    assert "Git LFS pointer, fetch the real file (expected size 4976698672)" in refused(directory)


def test_pickles_are_refused_alone_and_ignored_beside(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    (directory / "pytorch_model-00001-of-00002.bin").write_bytes(b"0123456789")
    assert any("pytorch_model-00001-of-00002.bin" in note for note in inspect(directory).notes)
    (directory / "model.safetensors").unlink()
    assert "the weights are pickles (pytorch_model-00001-of-00002.bin)" in refused(directory)


def test_metas_own_layout_is_recognised(tmp_path: Path) -> None:
    for name in ("consolidated.00.pth", "params.json", "tokenizer.model"):
        (tmp_path / name).write_bytes(b"")
    assert "Meta's own layout" in refused(tmp_path)


def test_dangling_links_are_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    assert "model.safetensors is a dangling link" in refused(directory)


def test_no_directory(tmp_path: Path) -> None:
    assert "is no directory" in refused(tmp_path / "none")


def test_foreign_tensors_are_not_dropped(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    weights |= {f"model.layers.0.mlp.experts.{index}.w1.weight": np.zeros((2, 2), np.float32) for index in range(12)}
    message = refused(write_model(tmp_path / "m", None, weights))
    assert "LlamaForCausalLM has no place for: model.layers.0.mlp.experts.0.w1.weight" in message
    assert "2 more (12 in all)" in message


def test_saved_rotary_frequencies_are_ignored_by_name(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    source = inspect(write_model(tmp_path / "m", None, weights))
    assert "ignored: model.layers.0.self_attn.rotary_emb.inv_freq" in source.notes


def test_tensors_in_a_wrapper_get_a_hint(tmp_path: Path) -> None:
    weights = {f"language_model.{name}": value for name, value in random_weights(config_of()).items()}
    directory = write_model(tmp_path / "m", None, weights)
    with pytest.raises(Failure) as caught:
        inspect(directory)
    assert "out of its wrapper" in caught.value.hint


def test_fused_experts_are_named(tmp_path: Path) -> None:
    """NVIDIA/TensorRT-LLM#6613: another layout of experts is told by name, and so are the tensors it leaves out."""
    config = config_of("mixtral")
    weights = {name: value for name, value in random_weights(config).items() if ".experts." not in name}
    weights["model.layers.0.mlp.experts.gate_up_proj"] = np.zeros((3, 96, 32), np.float32)
    message = refused(write_model(tmp_path / "m", config, weights))
    assert "MixtralForCausalLM has no place for: model.layers.0.mlp.experts.gate_up_proj" in message
    assert "needs: model.layers.0.block_sparse_moe.experts.0.w3.weight" in message
    assert "(27 in all)" in message


def test_a_total_that_does_not_add_up_is_noted(tmp_path: Path) -> None:
    directory, where, weights = sharded(tmp_path)
    held = sum(value.nbytes for value in weights.values())
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": held}, "weight_map": where}))
    assert not any("total_size" in note for note in inspect(directory).notes)
    index.write_text(json.dumps({"metadata": {"total_size": held + 1}, "weight_map": where}))
    assert f"{index.name} says total_size {held + 1}, its tensors have {held} bytes" in inspect(directory).notes


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    directory, where, weights = sharded(tmp_path)
    name = "model.norm.weight"
    other = next(file for file in where.values() if file != where[name])
    part = {key: weights[key] for key, file in where.items() if file == other}
    save_file({**part, name: weights[name]}, directory / other)
    assert f"{other} holds {name}, which model.safetensors.index.json does not map to it" in refused(directory)


def test_integer_weights_are_no_plain_weights(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.int8)
    assert "no plain weight: model.norm.weight (I8)" in refused(write_model(tmp_path / "m", None, weights))


# --- tokenizer and end ids -------------------------------------------------------------------------------------------


def break_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")


def only_tekken(directory: Path) -> None:
    (directory / "tokenizer.json").rename(directory / "tekken.json")


def foreign_eos(directory: Path) -> None:
    change(directory, "tokenizer_config.json", eos_token="w9")


def unknown_eos(directory: Path) -> None:
    change(directory, "tokenizer_config.json", eos_token="<|gone|>")


def too_many_tokens(directory: Path) -> None:
    write_tokenizer(directory, words=60)


def no_end(directory: Path) -> None:
    change(directory, "tokenizer_config.json", eos_token=None)
    change(directory, "config.json", eos_token_id=None)
    change(directory, "generation_config.json", eos_token_id=None)


def worded_end(directory: Path) -> None:
    change(directory, "generation_config.json", eos_token_id=["</s>"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (break_tokenizer, "tokenizer.json cannot be loaded"),
        (only_tekken, "there is no tokenizer.json; tekken.json cannot be read"),
        (foreign_eos, "the tokenizer ends texts with id 9, but config.json and generation_config.json say 2, 3"),
        (unknown_eos, "eos_token is '<|gone|>', which has no id"),
        (too_many_tokens, "token id 62 has no row in the embedding (vocab_size 50)"),
        (no_end, "no file says which token ends a text"),
        (worded_end, "generation_config.json: eos_token_id is ['</s>']"),
    ],
)
def test_tokenizer_faults(tmp_path: Path, fault: Callable[[Path], None], message: str) -> None:
    directory = write_model(tmp_path / "m")
    fault(directory)
    assert message in refused(directory)


def test_other_special_ids_may_differ_and_are_noted(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    change(directory, "config.json", bos_token_id=0)
    assert "bos ids differ: tokenizer 1, generation_config.json 1, config.json 0" in inspect(directory).notes


def test_what_encoding_adds_is_seen_by_encoding(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    write_tokenizer(directory, adds_bos=True)
    assert inspect(directory).tokenizer.adds_bos


def test_the_template_in_its_own_file_wins(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    before = inspect(directory).tokenizer
    assert before.chat_template == "{{ messages[0]['content'] }}"
    (directory / "chat_template.jinja").write_text("{{ bos_token }}")
    after = inspect(directory).tokenizer
    assert after.chat_template == "{{ bos_token }}"
    assert after.digest != before.digest
    assert after.vocabulary_digest == before.vocabulary_digest


def test_all_contradictions_are_told_at_once(tmp_path: Path) -> None:
    weights = random_weights(config_of())
    del weights[HEAD]
    weights["surplus"] = np.zeros(1, np.float32)
    directory = write_model(tmp_path / "m", None, weights)
    foreign_eos(directory)
    message = refused(directory)
    assert message.startswith("3 problems: ")
    assert all(part in message for part in ("lm_head.weight missing", "surplus", "ends texts with id 9"))


# --- pairs -----------------------------------------------------------------------------------------------------------

LIMITS = Limits(max_input_len=32, max_seq_len=64)


def test_a_pair_that_differs_in_padding_alone_is_accepted(tmp_path: Path) -> None:
    target = inspect(write_model(tmp_path / "target", config_of(vocab_size=56)))
    draft = inspect(write_model(tmp_path / "draft", config_of(num_hidden_layers=1)))
    (note,) = pair(target, draft, LIMITS)
    assert "target 56 rows, draft 50; effective vocabulary 48" in note


def test_a_pair_with_one_other_token_shows_it(tmp_path: Path) -> None:
    target = inspect(write_model(tmp_path / "target"))
    directory = write_model(tmp_path / "draft", config_of(num_hidden_layers=1))
    write_tokenizer(directory, changes={40: "other"})
    with pytest.raises(Failure, match=r"1 token ids of target and draft differ .*id 40: target 'w40', draft 'other'"):
        pair(target, inspect(directory), LIMITS)


def test_the_target_is_no_draft_of_itself(tmp_path: Path) -> None:
    target = inspect(write_model(tmp_path / "target"))
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(Failure, match="the draft is the target itself"):
        pair(target, inspect(tmp_path / "link"), LIMITS)


def test_a_draft_with_too_few_positions(tmp_path: Path) -> None:
    target = inspect(write_model(tmp_path / "target"))
    draft = inspect(write_model(tmp_path / "draft", config_of(max_position_embeddings=48)))
    with pytest.raises(Failure, match="max_seq_len 64 exceeds the draft's max_position_embeddings 48"):
        pair(target, draft, LIMITS)


def test_a_missing_expert_is_named_with_its_layer(tmp_path: Path) -> None:
    config = config_of("mixtral")
    weights = random_weights(config)
    del weights["model.layers.1.block_sparse_moe.experts.2.w1.weight"]
    message = refused(write_model(tmp_path / "m", config, weights))
    assert "MixtralForCausalLM needs: model.layers.1.block_sparse_moe.experts.2.w1.weight" in message
