"""Drafts and heads held against real directories: what goes together, what is noted, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.tiny_model import config_of, random_weights, write_model, write_tokenizer
from tests.fakes.tiny_speculators import (
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    write_heads_recipe,
    write_speculator,
)
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import Lane
from draftyard.nouns.recipe import Limits
from draftyard.nouns.source import Source
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.inspect import inspect, pair

LIMITS = Limits(max_input_len=32, max_seq_len=64)


def byte_pairs(directory: Path, *, digits: bool = False, prefix: bool = False, special: tuple[str, ...] = ()) -> Path:
    """Replace the tokenizer by one of bytes and a few merges; the options change how texts are split, not the ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "</s>", "<unk>", *letters, "ab", "12", "123"]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [("a", "b"), ("1", "2"), ("12", "3")])
    )
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    steps = [pre_tokenizers.Digits(individual_digits=True), bytes_only] if digits else [bytes_only]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", *special)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def model(directory: Path, vocab_size: int = 270, **tokenizer: object) -> Source:
    write_model(directory, config_of(vocab_size=vocab_size))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    config = config_of(vocab_size=vocab_size, eos_token_id=1, bos_token_id=0)
    (directory / "config.json").write_text(json.dumps(config))
    return inspect(byte_pairs(directory, **tokenizer))  # type: ignore[arg-type]


# --- draft models -------------------------------------------------------------------------------------------------


def test_padding_alone_is_accepted_and_told(tmp_path: Path) -> None:
    """Members of one family refused to pair, 151936 rows against 152064 (vllm-project/vllm#7252)."""
    target, draft = model(tmp_path / "t", 288), model(tmp_path / "d", 272)
    assert pair(target, draft, LIMITS) == (
        "embeddings are padded differently: target 288 rows, draft 272; effective vocabulary 262",
    )


def test_other_widths_of_logits_are_told_for_the_lane_that_copies_them(tmp_path: Path) -> None:
    """The accept step of the engine flow copies one into the other (NVIDIA/TensorRT-LLM#2789)."""
    notes = pair(model(tmp_path / "t", 288), model(tmp_path / "d", 272), LIMITS, (Lane.TENSORRT,))
    assert "logits of different widths cannot be compared: the tensorrt lane accepts drafts by token ids" in notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"digits": True}, "target and draft split '1234567890 12,345.678"),
        ({"prefix": True}, "target and draft split 'Hello world' differently"),
    ],
)
def test_equal_vocabularies_that_split_texts_otherwise_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", **changes)
    assert target.tokenizer.vocabulary_digest == draft.tokenizer.vocabulary_digest
    with pytest.raises(Failure) as caught:
        pair(target, draft, LIMITS)
    assert message in caught.value.message


def test_further_control_tokens_are_a_note(tmp_path: Path) -> None:
    notes = pair(model(tmp_path / "t", special=("<think>",)), model(tmp_path / "d"), LIMITS)
    assert notes[0].startswith("1 control tokens of target and draft differ")
    assert "target '<think>', draft none" in notes[0]


def test_a_first_token_that_only_one_adds_is_no_other_tokenizer(tmp_path: Path) -> None:
    """Encoding a draft's texts again with its own first token made it stutter (huggingface/transformers#46936)."""
    target = inspect(write_model(tmp_path / "t"))
    directory = write_model(tmp_path / "d", config_of(num_hidden_layers=1))
    write_tokenizer(directory, adds_bos=True)
    assert pair(target, inspect(directory), LIMITS) == (
        "only the tokenizer of the draft adds a first token; the target's ids are used for both",
    )


def test_other_ends_and_templates_are_told(tmp_path: Path) -> None:
    target = inspect(write_model(tmp_path / "t"))
    directory = write_model(tmp_path / "d", config_of(num_hidden_layers=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "other"}))
    assert pair(target, inspect(directory), LIMITS) == (
        "texts end with other ids: target 2, 3, draft 2; the target's are used for both",
        "chat templates differ: the target's is used for both",
    )


def test_a_draft_is_cut_by_its_own_ranks(tmp_path: Path) -> None:
    """Fourteen heads cannot be shared by four ranks, but the draft runs on one (vllm-project/vllm#10913)."""
    write_model(tmp_path / "target")
    write_model(tmp_path / "draft", config_of(num_attention_heads=14, num_key_value_heads=2, hidden_size=56))
    draft = "{kind: draft_target, path: draft, max_draft_len: 2}"
    assert draw_recipe(write_heads_recipe(tmp_path, draft, tp_size=4), None).drafts[0].network.heads == 14
    own = draft.replace("}", ", tp_size: 4}")
    with pytest.raises(Failure, match="tp_size 4 does not fit the draft: 14 heads"):
        draw_recipe(write_heads_recipe(tmp_path, own, tp_size=4), None)


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "mtp"])
def test_a_whole_model_is_no_speculator_of_that_kind(tmp_path: Path, kind: str) -> None:
    """An external draft was treated as a head, its width copied into the target's (vllm-project/vllm-ascend#7365)."""
    write_model(tmp_path / "target")
    write_model(tmp_path / "draft", config_of(num_hidden_layers=1))
    with pytest.raises(Failure, match="these tensors make up no speculator that is known"):
        draw_recipe(write_heads_recipe(tmp_path, f"{{kind: {kind}, path: draft}}"), None)


def test_heads_are_no_draft_model(tmp_path: Path) -> None:
    write_model(tmp_path / "target")
    write_speculator(tmp_path / "heads", eagle_weights(), layer_config())
    with pytest.raises(Failure) as caught:
        draw_recipe(write_heads_recipe(tmp_path, "{kind: draft_target, path: heads}"), None)
    assert caught.value.message == "the recipe says draft_target, the tensors in heads say eagle"


# --- heads --------------------------------------------------------------------------------------------------------

MEDUSA = "{kind: medusa, path: heads, choices: [[0], [0, 0]]}"
EAGLE = "{kind: eagle, path: heads, num_eagle_layers: 2, max_draft_len: 4}"
EAGLE3 = "{kind: eagle3, path: heads, depth: 3}"
MTP = "{kind: mtp, path: heads, max_draft_len: 2}"


def drawn(root: Path, speculator: str, **cut: int) -> tuple[str, ...]:
    if not (root / "target").exists():
        write_model(root / "target")
    return draw_recipe(write_heads_recipe(root, speculator, **cut), None).notes  # type: ignore[arg-type]


def refused(root: Path, speculator: str, **cut: int) -> str:
    with pytest.raises(Failure) as caught:
        drawn(root, speculator, **cut)
    return caught.value.message


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "mtp"])
def test_the_target_is_no_speculator_of_itself(tmp_path: Path, kind: str) -> None:
    """Without a path the target silently drafted for itself (sgl-project/sglang#36528)."""
    assert f"the path of {kind} is the target's own" in refused(tmp_path, f"{{kind: {kind}, path: target}}")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert f"the path of {kind} is the target's own" in refused(tmp_path, f"{{kind: {kind}, path: link}}")


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "medusa"])
def test_a_path_without_a_directory(tmp_path: Path, kind: str) -> None:
    assert "nowhere is no directory" in refused(tmp_path, f"{{kind: {kind}, path: nowhere}}")


def test_an_embedding_of_other_ids_is_no_embedding_of_this_target(tmp_path: Path) -> None:
    """A head for other ids drafts fluent nonsense and raises nothing (SafeAILab/EAGLE#258)."""
    table = random_weights(config_of())["model.embed_tokens.weight"]
    own = {**eagle_weights(), "embed_tokens.weight": table}
    write_speculator(tmp_path / "heads", own, layer_config())
    assert "eagle: 48 rows of its embedding point where the target's do" in drawn(tmp_path, EAGLE)
    permuted = {**own, "embed_tokens.weight": np.ascontiguousarray(table[::-1])}
    write_speculator(tmp_path / "heads", permuted, layer_config())
    assert "the speculator's embedding is not the target's: mean cosine" in refused(tmp_path, EAGLE)


def test_a_copy_in_another_precision_is_the_same_embedding(tmp_path: Path) -> None:
    table = random_weights(config_of())["model.embed_tokens.weight"]
    own = {**eagle_weights(), "embed_tokens.weight": table}
    write_speculator(
        tmp_path / "heads", {name: value.astype(np.float16) for name, value in own.items()}, layer_config()
    )
    assert drawn(tmp_path, EAGLE)


@pytest.mark.parametrize(
    ("speculator", "weights", "config", "message"),
    [
        (MEDUSA, medusa_weights(2, hidden=16), None, "take features of width 16, the target's are 32 wide"),
        (MEDUSA, medusa_weights(2, vocabulary=60), None, "are made for 60 tokens, the target has 50"),
        (
            EAGLE3,
            eagle3_weights(layer_config(vocab_size=60)),
            layer_config(vocab_size=60, draft_vocab_size=20),
            "the eagle3 weights are made for 60 tokens, the target has 50",
        ),
        (
            EAGLE3,
            eagle3_weights(target_hidden=16),
            layer_config(draft_vocab_size=20),
            "no embedding (embed_tokens) is stored, and the target's of width 16 does not fit",
        ),
        (
            EAGLE3,
            eagle3_weights(),
            layer_config(draft_vocab_size=20, eagle_aux_hidden_state_layer_ids=[1, 2, 4]),
            "read features behind layer 4, the target has 3 layers",
        ),
        (MTP, mtp_weights(), layer_config(max_position_embeddings=48), "exceeds the mtp network's max_position"),
        (
            "{kind: medusa, path: heads, heads: 6}",
            medusa_weights(5),
            {"medusa_num_heads": 2},
            "6 Medusa heads are asked for, 5 are stored",
        ),
        (
            "{kind: medusa, path: heads, choices: [[0], [0, 0], [0, 0, 0]]}",
            medusa_weights(2),
            None,
            "choices hold [0, 0, 0], 3 levels deep, and there are 2 Medusa heads",
        ),
        (
            "{kind: medusa, path: heads, max_draft_len: 60}",
            medusa_weights(1),
            None,
            "the tree takes [50], and the head has 50 tokens",
        ),
        (EAGLE, eagle3_weights(), layer_config(), "the recipe says eagle, the tensors say eagle3"),
        (
            "{kind: eagle3, path: heads, depth: 1, dynamic_tree_max_top_k: 21}",
            eagle3_weights(),
            layer_config(draft_vocab_size=20),
            "dynamic_tree_max_top_k 21 asks for more than the 20 tokens of the head",
        ),
    ],
)
def test_heads_of_another_target_are_refused(
    tmp_path: Path, speculator: str, weights: dict[str, np.ndarray], config: dict[str, object] | None, message: str
) -> None:
    write_speculator(tmp_path / "heads", weights, config)
    assert message in refused(tmp_path, speculator)


@pytest.mark.parametrize(
    ("speculator", "cut", "message"),
    [
        (MEDUSA, {"tp_size": 4}, "vocabulary 50 is no multiple of tp_size 4"),
        (EAGLE, {"pp_size": 2}, "EAGLE has no pipeline parallelism"),
        (EAGLE, {"tp_size": 4}, ""),
    ],
)
def test_cuts_of_merged_heads(tmp_path: Path, speculator: str, cut: dict[str, int], message: str) -> None:
    write_speculator(
        tmp_path / "heads",
        medusa_weights(2) if "medusa" in speculator else eagle_weights(embedding=False),
        layer_config(),
    )
    if message:
        assert message in refused(tmp_path, speculator, **cut)
    else:
        assert drawn(tmp_path, speculator, **cut)


def test_an_eagle_network_is_cut_by_its_own_heads(tmp_path: Path) -> None:
    config = layer_config(num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    write_speculator(tmp_path / "heads", eagle_weights(config, embedding=False), config)
    assert drawn(tmp_path, EAGLE, tp_size=2)
    assert "tp_size 4 does not fit the EAGLE network: 2 heads" in refused(tmp_path, EAGLE, tp_size=4)


def test_a_tokenizer_beside_the_weights_must_be_the_targets(tmp_path: Path) -> None:
    write_speculator(tmp_path / "heads", medusa_weights(2))
    write_tokenizer(tmp_path / "heads")
    assert drawn(tmp_path, MEDUSA)
    write_tokenizer(tmp_path / "heads", changes={40: "other"})
    assert "the tokenizer beside the medusa weights has 48 tokens, and is not the target's" in refused(tmp_path, MEDUSA)


def test_a_tree_is_refused_before_any_file_is_read(tmp_path: Path) -> None:
    """Nothing of it is on the disk."""
    recipe = write_heads_recipe(tmp_path, "{kind: medusa, path: nowhere, choices: [[0], [2]]}")
    with pytest.raises(Failure, match=r"choices hold \[2\] without \[1\]"):
        draw_recipe(recipe, None)
