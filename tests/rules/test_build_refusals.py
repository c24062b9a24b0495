"""What a builder would refuse or silently change is refused before it starts."""

from dataclasses import replace

import pytest
from tests.fakes.engine_builds import LLAMA_70B, checkpoint, engine_build

from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.rules.build_refusals import RULES, build_notes, build_problems


def changed(build: EngineBuild, **config: object) -> EngineBuild:
    """The build with other fields in its checkpoint's config."""
    return replace(build, checkpoint={**build.checkpoint, **config})


def optioned(build: EngineBuild, **options: str) -> EngineBuild:
    """The build with options of the recipe."""
    return replace(build, overrides=tuple(options.items()))


PLAIN, FP8 = engine_build(), engine_build(precision="fp8")
EAGLE, MEDUSA = engine_build("eagle"), engine_build("medusa")
QWEN = checkpoint(replace(LLAMA_70B, family="qwen2", architecture="Qwen2ForCausalLM"), "fp16", 2)
REFUSED = {
    "several profiles against one optimum": optioned(PLAIN, opt_num_tokens="64"),
    "tokens without context attention": optioned(PLAIN, context_fmha="disable"),
    "padding": optioned(PLAIN, remove_input_padding="disable"),
    "attention plugin": optioned(PLAIN, gpt_attention_plugin="disable"),
    "speculation without paged context attention": optioned(engine_build("external"), use_paged_context_fmha="disable"),
    "FP8 cache without FP8 weights": changed(PLAIN, quantization={"quant_algo": None, "kv_cache_quant_algo": "FP8"}),
    "FP8 context attention": optioned(PLAIN, use_fp8_context_fmha="enable"),
    "fused reduction": optioned(replace(PLAIN, checkpoint=QWEN), reduce_fusion="enable"),
    "user buffers": optioned(engine_build(tp_size=1), user_buffer="enable"),
    "norm fusion": optioned(PLAIN, norm_quant_fusion="enable"),
    "SwiGLU plugin without FP8": optioned(PLAIN, gemm_swiglu_plugin="fp8"),
    "SwiGLU plugin without a fused MLP": optioned(FP8, gemm_swiglu_plugin="fp8", use_fused_mlp="disable"),
    "two FP8 products": optioned(FP8, gemm_plugin="fp8", low_latency_gemm_plugin="fp8"),
    "streaming attention": optioned(PLAIN, streamingllm="enable"),
    "scattered pipeline": optioned(PLAIN, pp_reduce_scatter="enable"),
    "EAGLE batch": replace(EAGLE, max_batch_size=513),
    "EAGLE draft": changed(replace(EAGLE, max_draft_len=257), max_draft_len=257),
    "EAGLE pipeline": changed(EAGLE, mapping={"world_size": 4, "tp_size": 2, "pp_size": 2}),
    "EAGLE in FP8": engine_build("eagle", "fp8"),
    "Medusa vocabulary": changed(MEDUSA, vocab_size=128257),
    "no draft": replace(engine_build("external"), max_draft_len=0),
    "another draft than the checkpoint's": replace(MEDUSA, max_draft_len=31),
    "heads without their mode": replace(MEDUSA, mode=BuildMode.NONE, max_draft_len=0),
    "a mode without heads": replace(MEDUSA, checkpoint=checkpoint(LLAMA_70B, "fp16", 2)),
}


def test_every_rule_has_a_case():
    assert set(REFUSED) == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_refuses_its_case_with_a_hint(name):
    (rule,) = [one for one in RULES if one.name == name]
    found = {(problem.message, problem.hint) for problem in build_problems(REFUSED[name])}
    assert (rule.message, rule.hint) in found


@pytest.mark.parametrize("kind", ["plain", "external", "draft", "medusa", "eagle", "lookahead"])
def test_a_sound_build_is_not_refused(kind):
    assert build_problems(engine_build(kind)) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_output_len", "100", "no option --max_output_len"),
        ("max_batch_size", "8", "cannot be set in a recipe"),
        ("speculative_decoding_mode", "medusa", "cannot be set in a recipe"),
        ("gemm_plugin", "fast", "takes auto"),
    ],
)
def test_options_of_a_recipe_are_known_and_free(name, value, words):
    (problem,) = build_problems(optioned(PLAIN, **{name: value}))
    assert words in problem.message


FP8_CACHE = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "quantization", "block", "words"),
    [
        (32, 8, 128, {}, 32, None),
        (64, 8, 128, {}, 64, None),
        (24, 8, 128, {}, 32, "3 query heads to a KV head"),
        (28, 4, 128, {}, 32, "7 query heads"),
        (40, 8, 128, FP8_CACHE, 32, "5 query heads"),
        (32, 8, 80, {}, 32, "head size 80"),
        (32, 8, 256, {}, 32, "head size 256"),
        (32, 8, 256, FP8_CACHE, 32, None),
        (32, 8, 72, FP8_CACHE, 32, "head size 72"),
        (32, 8, 128, {}, 16, "tokens_per_block"),
        (32, 8, 128, FP8_CACHE, 16, None),
        (30, 8, 128, {}, 32, "no multiple"),
    ],
)
def test_trees_need_a_kernel(heads, kv_heads, head_size, quantization, block, words):
    build = changed(
        replace(MEDUSA, tokens_per_block=block),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_size=head_size,
        quantization=quantization,
    )
    found = [one.message for one in build_problems(build) if "tree" in one.message]
    assert bool(found) == (words is not None)
    if words is not None:
        assert words in found[0]


def test_a_chain_needs_no_tree_kernel():
    assert build_problems(changed(engine_build("external"), head_size=80)) == []


def test_notes_tell_what_is_no_fault():
    notes = " ".join(build_notes(changed(replace(MEDUSA, max_batch_size=64), head_size=104)))
    assert "greedily" in notes and "head size 104" in notes and "small batches" in notes
    assert "no fused all-reduce" in " ".join(build_notes(replace(PLAIN, checkpoint=QWEN)))
    assert "in place of auto" in " ".join(build_notes(optioned(PLAIN, gemm_plugin="disable")))
