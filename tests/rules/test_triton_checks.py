"""Each fault of a repository gets the smallest change that shows it."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.triton_repository import plan_of

from draftyard.nouns.repository import ModelConfig, ModelName, ModelTensors, Repository, TritonType
from draftyard.rules.triton_checks import compatible_dims, placeholder_problems, repository_problems
from draftyard.rules.triton_parameters import known_parameters, parameter_problems
from draftyard.rules.triton_repository import draw_repository

SOUND = draw_repository(plan_of())


def changed(name: str, change: Callable[[ModelConfig], ModelConfig]) -> Repository:
    return Repository(tuple(change(model) if model.name == name else model for model in SOUND.models))


def messages(name: str, change: Callable[[ModelConfig], ModelConfig]) -> str:
    return "\n".join(problem.message for problem in repository_problems(changed(name, change)))


def without(config: ModelConfig, name: str) -> ModelConfig:
    inputs, outputs = config.tensors.inputs, config.tensors.outputs
    kept = ModelTensors(
        tuple(tensor for tensor in inputs if tensor.name != name),
        tuple(tensor for tensor in outputs if tensor.name != name),
    )
    return replace(config, tensors=kept)


def retyped(config: ModelConfig, name: str, **changes: object) -> ModelConfig:
    def edit(tensors):
        return tuple(replace(tensor, **changes) if tensor.name == name else tensor for tensor in tensors)

    return replace(config, tensors=ModelTensors(edit(config.tensors.inputs), edit(config.tensors.outputs)))


def with_step(config: ModelConfig, index: int, **changes: object) -> ModelConfig:
    steps = list(config.steps)
    steps[index] = replace(steps[index], **changes)
    return replace(config, steps=tuple(steps))


def with_parameters(config: ModelConfig, **changes: str) -> ModelConfig:
    return replace(config, parameters=tuple(sorted({**dict(config.parameters), **changes}.items())))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tensorrt_llm", lambda m: replace(m, max_batch_size=4), "size is 8, that of tensorrt_llm only 4"),
        ("tensorrt_llm", lambda m: replace(m, max_batch_size=0), "tensorrt_llm: max_batch_size is 0"),
        ("tensorrt_llm", lambda m: without(m, "runtime_top_k"), "tensorrt_llm has no input runtime_top_k"),
        ("tensorrt_llm", lambda m: without(m, "output_ids"), "tensorrt_llm has no output output_ids"),
        ("preprocessing", lambda m: retyped(m, "INPUT_ID", type=TritonType.INT64), "are INT64 and INT32"),
        ("preprocessing", lambda m: retyped(m, "INPUT_ID", dims=(-1, -1)), r"have dims \[-1, -1\] and \[-1\]"),
        ("postprocessing", lambda m: retyped(m, "OUTPUT", type=TritonType.UINT8), "text_output and OUTPUT"),
        ("ensemble", lambda m: without(m, "seed"), "nothing before tensorrt_llm gives seed"),
        ("ensemble", lambda m: with_step(m, 0, inputs=m.steps[0].inputs[:2]), "preprocessing needs QUERY, REQUEST"),
        ("ensemble", lambda m: with_step(m, 1, model="other"), "there is no model other"),
        ("ensemble", lambda m: with_step(m, 2, outputs=()), "no step gives text_output"),
        ("ensemble", lambda m: with_step(m, 0, inputs=(*m.steps[0].inputs, ("END_ID", "pad_id"))), "mapped twice"),
        ("ensemble", lambda m: with_step(m, 2, outputs=(("OUTPUT", "_INPUT_ID"),)), "_INPUT_ID is given twice"),
        (
            "ensemble",
            lambda m: with_step(m, 1, inputs=tuple(pair for pair in m.steps[1].inputs if pair[0] != "end_id")),
            "_PREPROCESSOR_END_ID is used by no step",
        ),
        ("ensemble", lambda m: replace(m, instance_count=1), "ensemble: 1 instances"),
        ("tensorrt_llm", lambda m: replace(m, decoupled=False), "decoupled is False in tensorrt_llm and True in"),
        ("preprocessing", lambda m: replace(m, decoupled=True), "preprocessing is decoupled"),
        ("postprocessing", lambda m: replace(m, instance_count=2), "postprocessing: 2 instances"),
        ("tensorrt_llm_bls", lambda m: retyped(m, "generation_logits", type=TritonType.FP16), "generation_logits is"),
        ("tensorrt_llm", lambda m: with_parameters(m, gpt_model_path="${engine_dir}"), "a placeholder was left in"),
        ("tensorrt_llm", lambda m: with_parameters(m, gpt_model_path=""), "gpt_model_path is ''"),
        ("preprocessing", lambda m: with_parameters(m, tokenizer_dir="/models/tokenizer"), "tokenizer_dir is '/models"),
        ("preprocessing", lambda m: replace(m, queue=replace(m.queue, default_timeout_us=0)), "default time-out is 0"),
        (
            "tensorrt_llm",
            lambda m: replace(m, tensors=ModelTensors(m.tensors.inputs, m.tensors.outputs * 2)),
            "declared twice: output_ids|declared twice: acceptance_rate",
        ),
    ],
)
def test_each_fault_is_named(name, change, message):
    found = messages(name, change)
    assert re.search(message, found), found


def test_a_sound_repository_has_no_problems():
    assert repository_problems(SOUND) == ()


def test_models_must_be_the_five():
    found = repository_problems(Repository(SOUND.models[:-1]))
    assert "the repository has the models" in found[0].message
    assert "tensorrt_llm_bls" in found[0].hint


@pytest.mark.parametrize("key", ["tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"])
def test_the_guarded_keys_must_exist(key):
    values = dict(SOUND.model(ModelName.ENGINE).parameters)
    del values[key]
    assert [problem.message for problem in parameter_problems("tensorrt_llm", values)] == [
        f"tensorrt_llm: parameter {key} is missing"
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_cache_free_gpu_mem_fraction", "0.5x"),
        ("kv_cache_free_gpu_mem_fraction", "0,5"),
        ("kv_cache_free_gpu_mem_fraction", "1.5"),
        ("gpu_device_ids", "0:1"),
        ("medusa_choices", "{{0}, {1}}"),
        ("medusa_choices", "[[0],[1]]"),
        ("decoding_mode", "speculative"),
        ("enable_kv_cache_reuse", "True"),
        ("gpt_model_type", "V1"),
        ("gpt_model_path", "../engines"),
        ("max_beam_width", "0"),
        ("max_tokens_in_paged_kv_cache", "1e6"),
        ("cancellation_check_period_ms", ""),
    ],
)
def test_values_that_the_backend_would_half_read_are_refused(key, value):
    values = {**dict(SOUND.model(ModelName.ENGINE).parameters), key: value}
    (problem,) = parameter_problems("tensorrt_llm", values)
    assert problem.message == f"tensorrt_llm: parameter {key} is {value!r}"


@pytest.mark.parametrize(
    ("key", "value"), [("medusa_choices", "{0}, {0, 0}, {1}"), ("kv_cache_free_gpu_mem_fraction", "0.25")]
)
def test_values_in_the_backends_spelling_are_taken(key, value):
    values = {**dict(SOUND.model(ModelName.ENGINE).parameters), key: value}
    assert parameter_problems("tensorrt_llm", values) == ()


def test_an_unknown_key_shows_the_nearest():
    values = {**dict(SOUND.model(ModelName.ENGINE).parameters), "kv_cache_free_gpu_memory_fraction": "0.5"}
    (problem,) = parameter_problems("tensorrt_llm", values)
    assert problem.hint == "did you mean kv_cache_free_gpu_mem_fraction?"
    assert "kv_cache_free_gpu_mem_fraction" in known_parameters("tensorrt_llm")


def test_placeholders_are_found_with_file_and_line():
    (problem,) = placeholder_problems({"models/a/config.pbtxt": 'name: "a"\nmax_batch_size: ${size}\n', "b": "fine"})
    assert problem.message == "models/a/config.pbtxt:2: max_batch_size: ${size}"


@given(st.lists(st.integers(1, 3), max_size=4))
def test_dims_agree_with_themselves_and_with_any_length(dims):
    assert compatible_dims(tuple(dims), tuple(dims))
    assert compatible_dims(tuple(dims), (-1,) * len(dims))
    assert not compatible_dims(tuple(dims), (*dims, 1))
    assert not compatible_dims((*dims, 4), (*dims, 5))
