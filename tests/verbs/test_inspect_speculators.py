"""What a directory of speculator weights turns out to be, and what of it is refused."""

from pathlib import Path

import numpy as np
import pytest
from tests.fakes.tiny_speculators import (
    LAYER_CONFIG,
    Weights,
    eagle3_weights,
    eagle_weights,
    layer_config,
    layer_shapes,
    medusa_weights,
    mtp_weights,
    random_arrays,
    vocabulary_map,
    write_speculator,
)

from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.verbs.inspect import inspect_speculator

FILES = "model.safetensors"


def inspected(
    root: Path, weights: Weights, config: dict[str, object] | None = None, asked: SpeculatorKind | None = None
) -> SpeculatorSource:
    return inspect_speculator(write_speculator(root / "speculator", weights, config), asked)


def refused(
    root: Path, weights: Weights, config: dict[str, object] | None = None, asked: SpeculatorKind | None = None
) -> Failure:
    with pytest.raises(Failure) as caught:
        inspected(root, weights, config, asked)
    return caught.value


def without(weights: Weights, *names: str) -> Weights:
    return {name: value for name, value in weights.items() if name not in names}


# --- Medusa -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads."])
@pytest.mark.parametrize("config", [None, {"base_model_name_or_path": "base"}])
def test_heads_and_blocks_are_counted_by_tensors(tmp_path: Path, prefix: str, config: dict[str, object] | None) -> None:
    """Hand-made settings often lack the counts (FasterDecoding/Medusa#76)."""
    source = inspected(tmp_path, medusa_weights(5, 2, vocabulary=50, prefix=prefix), config)
    network = source.network
    assert (source.kind, network.heads, network.head_layers) == (SpeculatorKind.MEDUSA, 5, 2)
    assert (network.target_hidden_size, network.vocab_size, network.own_head) == (32, 50, True)
    assert "config.json has no medusa_num_heads: 5 by the tensors" in source.notes
    assert source.stored_names["medusa.4.1.linear.bias"] == f"{prefix}4.1.linear.bias"


def test_settings_that_count_fewer_heads_are_told(tmp_path: Path) -> None:
    """A published set says two heads where four and more are stored (NVIDIA/TensorRT-LLM#1795)."""
    source = inspected(tmp_path, medusa_weights(5), {"medusa_num_heads": 2, "medusa_num_layers": 1})
    assert source.network.heads == 5
    assert "config.json: medusa_num_heads is 2, the tensors hold 5: the tensors count" in source.notes


def test_heads_without_a_projection_have_none(tmp_path: Path) -> None:
    """Old sets reuse the base's head (FasterDecoding/Medusa#140)."""
    network = inspected(tmp_path, medusa_weights(2)).network
    assert (network.own_head, network.vocab_size) == (False, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 16}, "config.json: hidden_size is 16, the heads take 32"),
        ({"vocab_size": 60}, "config.json: vocab_size is 60, the heads' projections have 50 rows"),
        ({"vocab_size": "60"}, "config.json: vocab_size is '60', not a whole number"),
    ],
)
def test_sizes_of_heads_that_contradict_the_settings(tmp_path: Path, config: dict[str, object], message: str) -> None:
    assert message in refused(tmp_path, medusa_weights(2, vocabulary=50), config).message


def test_heads_without_a_projection_are_of_the_vocabulary_their_settings_name(tmp_path: Path) -> None:
    assert inspected(tmp_path, medusa_weights(2), {"vocab_size": 60}).network.vocab_size == 60


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            without(medusa_weights(3, vocabulary=50), "1.1.weight"),
            "head 1 has no vocabulary projection, head 0 has one",
        ),
        (without(medusa_weights(3), "1.0.linear.weight", "1.0.linear.bias"), "head 1 is missing, though head 2"),
        (without(medusa_weights(3, 2), "2.1.linear.weight", "2.1.linear.bias"), "head 2 has 1 residual blocks, head 0"),
        (without(medusa_weights(2), "1.0.linear.bias"), "there is no tensor medusa.1.0.linear.bias"),
        (
            {**medusa_weights(2), "1.0.linear.weight": np.zeros((32, 16), np.float32)},
            r"medusa.1.0.linear.weight has shape [32, 16], expected [32, 32]",
        ),
    ],
)
def test_a_mixed_set_of_heads_is_refused_by_the_head(tmp_path: Path, weights: Weights, message: str) -> None:
    assert message in refused(tmp_path, weights).message


# --- EAGLE --------------------------------------------------------------------------------------------------------


def test_an_eagle_network_of_a_model_type_nobody_registered(tmp_path: Path) -> None:
    """Published settings name types that no auto class knows (vllm-project/vllm#11126)."""
    config = layer_config(model_type="eagle", architectures=["EAGLEModel"])
    source = inspected(tmp_path, eagle_weights(), config, SpeculatorKind.EAGLE)
    decoder = source.network.decoder
    assert decoder is not None
    assert (decoder.layers, decoder.heads, decoder.kv_heads, decoder.head_size) == (1, 4, 2, 8)
    assert (decoder.intermediate_size, decoder.max_position_embeddings) == (40, 128)
    assert (source.network.own_embedding, source.network.own_head, source.network.input_bias) == (True, False, True)
    assert "no head is stored: the target's is used" in source.notes


def test_a_missing_bias_is_no_fault(tmp_path: Path) -> None:
    """The public head for Llama-3-8B has no fc.bias (NVIDIA/TensorRT-LLM#2588)."""
    source = inspected(tmp_path, eagle_weights(bias=False), layer_config())
    assert not source.network.input_bias
    assert "fc has no bias: zeros stand for it" in source.notes


@pytest.mark.parametrize("prefix", ["eagle_module.", "model."])
def test_wrappers_around_the_names_are_taken_off(tmp_path: Path, prefix: str) -> None:
    weights = {f"{prefix}{name}": value for name, value in eagle_weights().items()}
    if prefix == "eagle_module.":
        weights["model.layers.0.mlp.gate_proj.weight"] = np.zeros((4, 4), np.float32)
    source = inspected(tmp_path, weights, layer_config())
    assert source.stored_names["eagle.fc.weight"] == f"{prefix}fc.weight"
    assert any(note.startswith("ignored: model.layers.0.mlp") for note in source.notes) == (prefix == "eagle_module.")


def test_layers_are_counted_by_tensors(tmp_path: Path) -> None:
    """`num_hidden_layers` is often copied from the target (NickL77/BaldEagle#6)."""
    config = layer_config(num_hidden_layers=40)
    source = inspected(tmp_path, eagle_weights(layers=2), config)
    assert source.network.decoder is not None
    assert source.network.decoder.layers == 2
    assert "config.json: num_hidden_layers is 40, the tensors hold 2: the tensors count" in source.notes


def test_biases_of_attention_are_seen(tmp_path: Path) -> None:
    weights = eagle_weights() | random_arrays(
        {f"layers.0.self_attn.{name}_proj.bias": (size,) for name, size in (("q", 32), ("k", 16), ("v", 16))}
    )
    decoder = inspected(tmp_path, weights, layer_config()).network.decoder
    assert decoder is not None
    assert (decoder.qkv_bias, decoder.dense_bias, decoder.family) == (True, False, "qwen2")


# --- EAGLE-3 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_an_eagle3_network_with_a_reduced_vocabulary(tmp_path: Path, layer: str) -> None:
    source = inspected(tmp_path, eagle3_weights(layer=layer), layer_config(draft_vocab_size=20))
    network = source.network
    assert (source.kind, network.target_hidden_size) == (SpeculatorKind.EAGLE3, 32)
    assert (network.vocab_size, network.draft_vocab_size, network.reduced, network.mapped) == (50, 20, True, True)
    assert network.taps is None
    assert source.stored_names["eagle3.layers.0.hidden_norm.weight"] == f"{layer}.hidden_norm.weight"


def test_a_narrower_network_brings_its_own_embedding(tmp_path: Path) -> None:
    """Widths of head and target differ, and the embedding is the head's own (vllm-project/vllm#18906)."""
    config = layer_config(hidden_size=24, head_dim=6)
    source = inspected(tmp_path, eagle3_weights(config, target_hidden=32, embedding=True), config)
    assert source.network.target_hidden_size == 32
    assert source.network.decoder is not None
    assert (source.network.decoder.hidden_size, source.network.own_embedding) == (24, True)


def test_a_narrower_network_without_an_embedding_fits_nothing(tmp_path: Path) -> None:
    config = layer_config(hidden_size=24, head_dim=6)
    failure = refused(tmp_path, eagle3_weights(config, target_hidden=32), config)
    assert "no embedding (embed_tokens) is stored, and the target's of width 32 does not fit" in failure.message


def test_taps_of_the_settings_are_read(tmp_path: Path) -> None:
    config = layer_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]})
    assert inspected(tmp_path, eagle3_weights(), config).network.taps == (1, 2, 3)


@pytest.mark.parametrize("taps", [[1, 2], [1, 2, -1], "123", [1, 2, 3.0], [True, 1, 2]])
def test_taps_that_are_none_are_refused(tmp_path: Path, taps: object) -> None:
    config = layer_config(eagle_aux_hidden_state_layer_ids=taps)
    assert "not three counts of layers" in refused(tmp_path, eagle3_weights(), config).message


def test_two_layers_are_refused_by_number(tmp_path: Path) -> None:
    """The second layer takes one width, the first two (neuralmagic/vllm#119)."""
    weights = eagle3_weights(layer="layers.0") | random_arrays(layer_shapes("layers.1", LAYER_CONFIG))
    failure = refused(tmp_path, weights, layer_config(num_hidden_layers=2))
    assert "the network has 2 layers; EAGLE-3 with one layer is supported" in failure.message


def test_a_head_that_is_not_stored_is_borrowed_only_for_the_whole_vocabulary(tmp_path: Path) -> None:
    """A loader that fills what is missing at random drafts at random (sgl-project/sglang#27908)."""
    source = inspected(tmp_path, eagle3_weights(draft_rows=None), layer_config(draft_vocab_size=50))
    assert not source.network.own_head
    assert "no head is stored: the target's is used" in source.notes
    reduced = without(eagle3_weights(), "lm_head.weight")
    assert (
        "needs a head of its own, and there is no lm_head"
        in refused(tmp_path / "reduced", reduced, layer_config(draft_vocab_size=20)).message
    )


# --- reduced vocabularies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 4.0, "32000", True])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_impossible_draft_vocabularies(tmp_path: Path, size: object, kind: str) -> None:
    """Sizes that are none gave nonsense maps (NVIDIA-NeMo/Automodel#2260)."""
    weights = eagle3_weights() if kind == "eagle3" else eagle_weights()
    failure = refused(tmp_path, weights, layer_config(draft_vocab_size=size))
    assert f"config.json: draft_vocab_size is {size!r}, not a whole number of at least 1" in failure.message


def test_no_size_at_all_is_the_size_of_the_head(tmp_path: Path) -> None:
    config = {**layer_config(), "draft_vocab_size": None}
    assert inspected(tmp_path, eagle3_weights(draft_rows=50), config).network.draft_vocab_size == 50
    assert not inspected(tmp_path, eagle3_weights(draft_rows=50), config).network.reduced


def test_a_reduced_vocabulary_without_its_map_is_refused(tmp_path: Path) -> None:
    """The identity is no map: everything ran and nothing was accepted (NVIDIA-NeMo/Automodel#2447)."""
    failure = refused(tmp_path, without(eagle3_weights(), "d2t", "t2d"), layer_config(draft_vocab_size=20))
    assert "a draft vocabulary of 20 out of 50 tokens needs a map, and there is no tensor d2t" in failure.message
    assert "d2t" in failure.hint


def changed(**arrays: np.ndarray) -> Weights:
    return {**eagle3_weights(), **arrays}


D2T, T2D = vocabulary_map(20, 50)["d2t"], vocabulary_map(20, 50)["t2d"]


def replaced(table: np.ndarray, index: int, value: int | bool) -> np.ndarray:
    copy = table.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (changed(d2t=replaced(D2T, 19, 600 - 19)), "d2t[19] leads to id 600, outside the target's 50 tokens"),
        (changed(d2t=replaced(D2T, 0, -1)), "d2t[0] leads to id -1, outside the target's 50 tokens"),
        (changed(d2t=replaced(D2T, 4, 7 - 4)), "d2t[3] and d2t[4] both lead to id 7"),
        (changed(d2t=D2T.astype(np.int32)), "eagle3.d2t is of type I32, and must be int64"),
        (changed(d2t=D2T.astype(np.float32)), "eagle3.d2t is of type F32, and must be int64"),
        (changed(d2t=D2T[:19]), "eagle3.d2t has shape [19], expected [20]"),
        (changed(t2d=replaced(T2D, 1, False)), "t2d marks 19 ids, the draft vocabulary has 20"),
        (
            changed(t2d=replaced(replaced(T2D, 1, False), 48, True)),
            "t2d and d2t disagree on id 1: t2d does not mark it, d2t leads to it",
        ),
        (changed(t2d=T2D.astype(np.uint8)), "eagle3.t2d is of type U8, and must be bool"),
    ],
)
def test_each_fault_of_a_map_by_its_first_index(tmp_path: Path, weights: Weights, message: str) -> None:
    """Bad maps loaded in silence (ggml-org/llama.cpp#18039)."""
    assert message in refused(tmp_path, weights, layer_config(draft_vocab_size=20)).message


def test_a_map_of_the_whole_vocabulary_moves_nothing(tmp_path: Path) -> None:
    whole = {**eagle3_weights(draft_rows=50), "d2t": np.zeros(50, np.int64)}
    network = inspected(tmp_path, whole, layer_config()).network
    assert (network.mapped, network.reduced) == (True, False)
    turned = {**whole, "d2t": np.array([1, -1] + [0] * 48, np.int64)}
    assert (
        "d2t[0] is 1, though the draft vocabulary is the whole one"
        in refused(tmp_path / "turned", turned, layer_config()).message
    )


def test_an_eagle_network_may_have_a_reduced_vocabulary_too(tmp_path: Path) -> None:
    weights = {
        **eagle_weights(embedding=False),
        **random_arrays({"lm_head.weight": (20, 32)}),
        "d2t": vocabulary_map(20, 50)["d2t"],
    }
    network = inspected(tmp_path, weights, layer_config(draft_vocab_size=20)).network
    assert (network.kind, network.reduced, network.mapped) == (SpeculatorKind.EAGLE, True, True)
    assert (network.own_head, network.own_embedding) == (True, False)


# --- MTP ----------------------------------------------------------------------------------------------------------


def test_an_mtp_module_behind_the_layers_of_its_model(tmp_path: Path) -> None:
    weights = mtp_weights(head=True, embedding=True) | random_arrays({"model.layers.0.mlp.up_proj.weight": (4, 4)})
    source = inspected(tmp_path, weights, layer_config(num_hidden_layers=3))
    assert source.kind is SpeculatorKind.MTP
    assert (source.network.own_head, source.network.own_embedding) == (True, True)
    assert source.stored_names["mtp.norm.weight"] == "model.layers.3.shared_head.norm.weight"
    assert "ignored: model.layers.0.mlp.up_proj.weight" in source.notes


def test_a_module_of_another_make_is_refused_by_its_tensors(tmp_path: Path) -> None:
    weights = mtp_weights() | random_arrays({"model.layers.3.self_attn.kv_a_proj_with_mqa.weight": (4, 4)})
    failure = refused(tmp_path, weights, layer_config())
    assert "tensors that an MTP module with an ordinary decoder layer has no place for" in failure.message
    assert "kv_a_proj_with_mqa" in failure.message


# --- which kind ---------------------------------------------------------------------------------------------------

BY_KIND: dict[SpeculatorKind, Weights] = {
    SpeculatorKind.MEDUSA: medusa_weights(),
    SpeculatorKind.EAGLE: eagle_weights(),
    SpeculatorKind.EAGLE3: eagle3_weights(),
    SpeculatorKind.MTP: mtp_weights(),
}


@pytest.mark.parametrize("asked", BY_KIND)
@pytest.mark.parametrize("stored", BY_KIND)
def test_tensors_decide_the_kind(tmp_path: Path, stored: SpeculatorKind, asked: SpeculatorKind) -> None:
    """Generations were mixed up, and the settings did not tell (SafeAILab/EAGLE#214)."""
    if stored is asked:
        assert inspected(tmp_path, BY_KIND[stored], layer_config(), asked).kind is stored
        return
    failure = refused(tmp_path, BY_KIND[stored], layer_config(), asked)
    assert f"the recipe says {asked}, the tensors say {stored}: " in failure.message
    assert f"kind: {stored}" in failure.hint


def test_an_older_network_given_as_eagle3_is_told_both_facts(tmp_path: Path) -> None:
    failure = refused(tmp_path, eagle_weights(), layer_config(), SpeculatorKind.EAGLE3)
    assert "fc has shape [32, 64], twice its width, and no layer has a hidden_norm" in failure.message


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (random_arrays({"model.embed_tokens.weight": (5, 4)}), "these tensors make up no speculator that is known"),
        (random_arrays({"fc.weight": (32, 96)}), "fc has shape [32, 96]: EAGLE takes twice its width"),
    ],
)
def test_tensors_of_nothing_known(tmp_path: Path, weights: Weights, message: str) -> None:
    assert message in refused(tmp_path, weights, layer_config()).message


@pytest.mark.parametrize(
    "kind", [SpeculatorKind.MEDUSA, SpeculatorKind.EAGLE, SpeculatorKind.EAGLE3, SpeculatorKind.MTP]
)
def test_quantised_weights_are_refused(tmp_path: Path, kind: SpeculatorKind) -> None:
    weights = dict(BY_KIND[kind])
    name = next(name for name, value in weights.items() if value.ndim == 2)
    weights[name] = weights[name].astype(np.int8)
    assert "of a type that is no plain weight" in refused(tmp_path, weights, layer_config()).message


@pytest.mark.parametrize(
    ("weights", "config", "message"),
    [
        (eagle_weights(), layer_config(num_attention_heads=8), "k_proj.weight has 16 rows, which is not"),
        (eagle_weights(), layer_config(head_dim=5), "q_proj.weight has 32 rows, which is not"),
        (eagle_weights(), layer_config(num_attention_heads=None), "neither head_dim nor num_attention_heads"),
        (eagle_weights(), layer_config(rope_theta=None), "rope_theta"),
        (eagle_weights(), layer_config(rms_norm_eps=None), "config.json has no rms_norm_eps"),
        (eagle_weights(), layer_config(hidden_size=48), "config.json: hidden_size is 48, fc gives 32"),
        (
            eagle_weights(),
            layer_config(vocab_size=51),
            "eagle.embed_tokens.weight has shape [50, 32], expected [51, 32]",
        ),
        (eagle_weights(embedding=False), layer_config(vocab_size=None), "config.json has no vocab_size"),
        (eagle_weights(), layer_config(hidden_act="gelu"), "another activation than silu"),
        (
            without(eagle_weights(), "layers.0.mlp.up_proj.weight"),
            layer_config(),
            "there is no tensor eagle.layers.0.mlp",
        ),
        (
            eagle_weights() | random_arrays({"norm.weight": (32,)}),
            layer_config(),
            "tensors that an EAGLE network has no place for: eagle.norm.weight",
        ),
        (
            eagle_weights() | random_arrays({"layers.0.input_layernorm.weight": (32,)}),
            layer_config(),
            "has no place for: eagle.layers.0.input_layernorm.weight",
        ),
    ],
)
def test_contradictions_are_named(tmp_path: Path, weights: Weights, config: dict[str, object], message: str) -> None:
    assert message in refused(tmp_path, weights, config).message


# --- files --------------------------------------------------------------------------------------------------------


def test_a_file_of_any_name_will_do(tmp_path: Path) -> None:
    path = write_speculator(tmp_path, medusa_weights(2), file="medusa_lm_head.safetensors")
    assert inspect_speculator(path).network.heads == 2


def test_the_digest_is_of_contents_alone(tmp_path: Path) -> None:
    first = inspect_speculator(write_speculator(tmp_path / "a", medusa_weights(2)))
    again = inspect_speculator(write_speculator(tmp_path / "b", medusa_weights(2)))
    other = inspect_speculator(write_speculator(tmp_path / "c", medusa_weights(3)))
    assert first.digest == again.digest != other.digest


def test_two_files_without_an_index_are_not_guessed(tmp_path: Path) -> None:
    write_speculator(tmp_path, medusa_weights(2), file="a.safetensors")
    write_speculator(tmp_path, medusa_weights(2), file="b.safetensors")
    with pytest.raises(Failure, match=r"a\.safetensors, b\.safetensors without"):
        inspect_speculator(tmp_path)


@pytest.mark.parametrize(
    ("file", "message"),
    [("medusa_lm_head.pt", "pickles"), ("notes.txt", "there are no weights"), (None, "is no directory")],
)
def test_directories_without_safetensors(tmp_path: Path, file: str | None, message: str) -> None:
    directory = tmp_path / "speculator"
    if file is not None:
        directory.mkdir()
        (directory / file).write_bytes(b"x")
    with pytest.raises(Failure, match=message):
        inspect_speculator(directory)
