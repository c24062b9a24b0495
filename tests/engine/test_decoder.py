"""The decoder against transformers: logits, greedy tokens, every way a checkpoint can be cut."""

from pathlib import Path

import pytest
import torch
from tests.engine.tiny_engines import (
    NGRAM,
    Sizes,
    loaded,
    random_llama,
    random_prompts,
    rounded,
    run,
    tokens_of,
    transformers_greedy,
    write_engine,
)
from transformers import LlamaForCausalLM

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.runs import Run
from draftyard.nouns.errors import Failure
from draftyard.nouns.generation import GenerationRequest

VARIANTS: dict[str, dict[str, object]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "one_kv_head": {"num_key_value_heads": 1},
    "all_kv_heads": {"num_key_value_heads": 4},
    "wide_heads": {"head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "odd_vocabulary": {"vocab_size": 97},
}
SCALINGS: dict[str, dict[str, object]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}


def logits_of(directory: Path, prompt: list[int]) -> torch.Tensor:
    """Logits of every position of one prompt, straight from the decoder."""
    engine = loaded(directory)
    with torch.inference_mode():
        return engine._decoder.forward([Run(0, 0, tuple(prompt), 0)])


def expected_logits(model: LlamaForCausalLM, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0]


def filled(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Biases start as zeros and norms as ones, which would hide a mistake."""
    generator = torch.Generator().manual_seed(3)
    for value in model.parameters():
        if value.dim() == 1:
            value.data += torch.randn(value.shape, generator=generator) * 0.1
    return model


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_logits_are_those_of_transformers(tmp_path: Path, variant: str, tp_size: int, pp_size: int) -> None:
    model = filled(random_llama(**VARIANTS[variant]))
    directory = write_engine(tmp_path / "engine", model, tp_size=tp_size, pp_size=pp_size)
    prompt = random_prompts(1, seed=tp_size, lengths=(50, 60))[0]
    difference = (logits_of(directory, prompt) - expected_logits(model, prompt)).abs().max()
    assert difference <= 1e-4


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rotations_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = random_llama(rope_parameters={"rope_theta": 5000.0, **SCALINGS[kind]}, max_position_embeddings=512)
    directory = write_engine(tmp_path / "engine", model)
    prompt = random_prompts(1, lengths=(120, 128))[0]
    assert (logits_of(directory, prompt) - expected_logits(model, prompt)).abs().max() <= 1e-4
    plain = random_llama(rope_parameters={"rope_theta": 5000.0, "rope_type": "default"})
    assert (expected_logits(plain, prompt) - expected_logits(model, prompt)).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_multiplied_without_further_rounding(tmp_path: Path, dtype: torch.dtype) -> None:
    model = random_llama()
    directory = write_engine(tmp_path / "engine", model, dtype=dtype)
    widened = rounded(model, dtype)
    prompt = random_prompts(1)[0]
    assert (logits_of(directory, prompt) - expected_logits(widened, prompt)).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    """20 prompts, 256 tokens, eight at once, with prompts read in pieces.

    One pass of transformers over prompt and output says for every position whether the next token is its arg max;
    by induction that is greedy decoding. Two prompts go through `generate` itself as well.
    """
    model = random_llama()
    directory = write_engine(tmp_path / "engine", model, dtype=dtype, sizes=Sizes(max_num_tokens=24))
    model = rounded(model, dtype)
    prompts = random_prompts(20)
    requests = [GenerationRequest(str(index), tuple(prompt), 256) for index, prompt in enumerate(prompts)]
    events = run(loaded(directory), requests)
    for index, prompt in enumerate(prompts):
        output = tokens_of(events[str(index)])
        assert len(output) == 256
        likeliest = expected_logits(model, [*prompt, *output[:-1]])[len(prompt) - 1 :].argmax(-1).tolist()
        assert output == likeliest
    for index in (0, 1):
        assert tokens_of(events[str(index)]) == transformers_greedy(model, prompts[index], 256)


def test_a_tree_is_scored_like_its_paths(tmp_path: Path) -> None:
    directory = write_engine(tmp_path / "engine", random_llama())
    decoder = loaded(directory)._decoder
    prompt, tree, parents = [5, 9, 3, 7], (10, 20, 30, 40, 50), (-1, 0, 0, 1, 2)
    paths = {3: [10, 20, 40], 4: [10, 30, 50]}
    with torch.inference_mode():
        decoder.forward([Run(0, 0, tuple(prompt), 4)])
        rows = decoder.forward([Run(0, 4, tree, 0, parents)])
        for node, path in paths.items():
            whole = decoder.forward([Run(1, 0, (*prompt, *path), len(prompt) + len(path) - 1)])
            assert (rows[node] - whole[0]).abs().max() <= 1e-4


def test_features_are_the_hidden_states_of_transformers(tmp_path: Path) -> None:
    model = filled(random_llama())
    decoder = loaded(write_engine(tmp_path / "engine", model))._decoder
    prompts = random_prompts(3)
    runs = [Run(slot, 0, tuple(prompt), len(prompt) - 1) for slot, prompt in enumerate(prompts)]
    last: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda module, arguments: last.append(arguments[0][0]))
    with torch.inference_mode():
        logits, features = decoder.forward_with_features(runs, (1, -1, 0, 2))
        expected = [model(torch.tensor([prompt]), output_hidden_states=True) for prompt in prompts]
        assert torch.equal(logits, decoder.forward(runs))
    states = [
        torch.cat([one.hidden_states[1][0], one.hidden_states[2][0], one.hidden_states[0][0], residual], dim=1)
        for one, residual in zip(expected, last, strict=True)
    ]
    assert features.shape == (sum(len(prompt) for prompt in prompts), 4 * 64)
    assert (features - torch.cat(states)).abs().max() <= 1e-4


def test_no_features_are_an_empty_matrix_and_strange_taps_are_refused(tmp_path: Path) -> None:
    decoder = loaded(write_engine(tmp_path / "engine", random_llama()))._decoder
    with torch.inference_mode():
        assert decoder.forward_with_features([Run(0, 0, (5, 9, 3), 2)], ())[1].shape == (3, 0)
        for tap in (-2, 3):
            with pytest.raises(ValueError, match=str(tap)):
                decoder.forward_with_features([Run(0, 0, (5, 9, 3), 2)], (0, tap))


def test_the_kept_path_of_a_tree_is_a_chain_for_what_follows(tmp_path: Path) -> None:
    decoder = loaded(write_engine(tmp_path / "engine", random_llama()))._decoder
    prompt, tree, parents = (5, 9, 3, 7), (10, 20, 30, 40, 50, 60), (-1, 0, 0, 1, 2, 4)
    with torch.inference_mode():
        decoder.forward([Run(1, 0, prompt, 4), Run(0, 0, prompt, 4)])
        decoder.forward([Run(1, 4, tree, 6, parents)])
        decoder.cache.keep(1, 4, (0, 2, 4, 5))
        rows = decoder.forward([Run(1, 8, (70,), 0), Run(0, 4, (10, 30, 50, 60, 70), 4)])
    assert (rows[0] - rows[1]).abs().max() <= 1e-4


def rows_are_alike_in_any_company() -> bool:
    """Whether this processor's float32 products keep what attention is padded for."""
    generator = torch.Generator().manual_seed(0)
    many, other = torch.randn(2, 24, 192, generator=generator), torch.randn(2, 192, 64, generator=generator)
    whole = torch.bmm(many, other)
    padded = torch.cat((many[:, :, :150], torch.zeros(2, 24, 42)), dim=2)
    return all(
        torch.equal(torch.bmm(many[:, :rows].contiguous(), other), whole[:, :rows]) for rows in (4, 5, 8, 18)
    ) and torch.equal(torch.bmm(padded, other), torch.bmm(many[:, :, :150].contiguous(), other[:, :150]))


@pytest.mark.skipif(not rows_are_alike_in_any_company(), reason="this processor's BLAS sums rows by their company")
@pytest.mark.parametrize("start", [3, 37, 189, 203])
def test_a_token_has_the_same_bits_verified_in_a_prompt_and_alone_in_float16(tmp_path: Path, start: int) -> None:
    decoder = loaded(write_engine(tmp_path / "engine", random_llama(), dtype=torch.float16))._decoder
    tokens = tuple(random_prompts(1, seed=start, lengths=(start + 6, start + 7))[0])
    with torch.inference_mode():
        decoder.forward([Run(slot, 0, tokens[:start], start) for slot in (0, 1, 2)])
        single = torch.cat(
            [
                decoder.forward([Run(0, start + place, tokens[start + place : start + place + 1], 0)])
                for place in range(6)
            ]
        )
        together = decoder.forward([Run(3, 0, (7, 8), 2), Run(1, start, tokens[start : start + 6], 0)])
        pieces = [
            decoder.forward([Run(2, start + place, tokens[start + place : start + place + 3], 0), Run(3, 2, (9,), 1)])
            for place in (0, 3)
        ]
        prompt = decoder.forward([Run(4, 0, tokens[: start + 6], start), Run(5, 0, tuple(range(80)), 80)])
    assert torch.equal(together, single)
    assert torch.equal(torch.cat(pieces), single)
    assert torch.equal(prompt, single)


def test_verified_rows_have_the_bits_of_single_rows_in_float16_products(tmp_path: Path) -> None:
    """The matrix products are the same for any number of rows, on every processor that has them."""
    decoder = loaded(write_engine(tmp_path / "engine", random_llama(), dtype=torch.float16))._decoder
    product = decoder.weights.layers[0].feed_forward.fc_gate
    rows = torch.randn(33, 64, generator=torch.Generator().manual_seed(0))
    together = product(rows)
    for count in (1, 2, 5, 8, 17):
        assert torch.equal(product(rows[3 : 3 + count].contiguous()), together[3 : 3 + count])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"moe": {"num_experts": 4, "normalization_mode": 2}}, "experts"),
        ({"quantization": {"quant_algo": "W8A16"}}, "W8A16"),
        ({"quantization": {"kv_cache_quant_algo": "INT8"}}, "INT8"),
        ({"version": "0.11.0", "quantization": {"sq_use_plugin": True}}, "sq_use_plugin"),
        ({"rotary_scaling": {"type": "longrope"}}, "longrope needs short_factor"),
        ({"rotary_scaling": {"type": "longrope", "original_max_position_embeddings": 64}}, "up to 64 tokens"),
        ({"rotary_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 100}, "up to 100 tokens"),
        ({"rotary_scaling": {"type": "ntk"}}, "ntk"),
        ({"sliding_window": 64}, "64"),
        ({"use_parallel_embedding": True}, "embedding"),
    ],
)
def test_what_cannot_be_executed_is_refused_by_name(tmp_path: Path, change: dict[str, object], part: str) -> None:
    directory = write_engine(tmp_path / "engine", random_llama(), pretrained=change)
    with pytest.raises(Failure, match=part):
        loaded(directory)


def test_a_missing_file_and_a_missing_tensor_are_named(tmp_path: Path) -> None:
    directory = write_engine(tmp_path / "engine", random_llama(), tp_size=2)
    (directory / "rank1.safetensors").rename(directory / "kept")
    with pytest.raises(Failure, match=r"rank1\.safetensors"):
        loaded(directory)
    tied = write_engine(tmp_path / "tied", random_llama(tie_word_embeddings=True))
    text = (tied / "config.json").read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    (tied / "config.json").write_text(text)
    with pytest.raises(Failure, match=r"transformer\.layers\.2"):
        loaded(tied)


def test_an_engine_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"config\.json"):
        load_engine(tmp_path, open_tensor_file)


def test_limits_are_those_of_the_build_without_draft_room(tmp_path: Path) -> None:
    limits = loaded(write_engine(tmp_path / "engine", random_llama(), speculator=NGRAM)).limits
    assert (limits.max_seq_len, limits.max_draft_len, limits.max_batch_size) == (400, 4, 8)
