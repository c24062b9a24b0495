"""A blueprint makes each artefact once, in order, and a change reaches exactly what depends on it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.fakes.tiny_model import config_of, write_model
from tests.fakes.tiny_recipe import TEXT

from draftyard.nouns.blueprint import Blueprint, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import (
    Eagle3Speculator,
    EagleSpeculator,
    MedusaSpeculator,
    MtpSpeculator,
    NgramSpeculator,
    Recipe,
)
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorNetwork, SpeculatorSource
from draftyard.nouns.tensor import TensorType
from draftyard.nouns.toolchain import Toolchain
from draftyard.rules.draw import draw, kv_cache_tokens, ways
from draftyard.rules.explain import StepState, explain, variant_memory
from draftyard.verbs.inspect import inspect

TOOLCHAIN = Toolchain(
    tensorrt_llm="1.2.1", tensorrt="10", cuda="13", driver_floor="580", triton_image="image", store_format=1
)

HEADS = SpeculatorSource("e", "0" * 64, SpeculatorNetwork(SpeculatorKind.EAGLE, 8, 9, 9), TensorType.F16, (), {})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Source]:
    root = tmp_path_factory.mktemp("models")
    return inspect(write_model(root / "t")), inspect(write_model(root / "d", config_of(num_hidden_layers=1)))


def drawn(models: tuple[Source, Source], *changes: tuple[str, str], guests: str = "0" * 64) -> Blueprint:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    recipe = Recipe.model_validate(yaml.safe_load(text))
    drafts = tuple(models[1] for speculator in recipe.speculators if speculator.kind.value == "draft_target")
    return draw(recipe, models[0], drafts, TOOLCHAIN, guests)


def by_label(blueprint: Blueprint) -> dict[str, str]:
    return {step.label: step.key for step in blueprint.steps}


def changed(first: Blueprint, second: Blueprint) -> set[str]:
    left, right = by_label(first), by_label(second)
    return {label for label in set(left) | set(right) if left.get(label) != right.get(label)}


def test_variants_and_shared_steps(models: tuple[Source, Source]) -> None:
    blueprint = drawn(models)
    names = [variant.name for variant in blueprint.variants]
    assert names == ["none-fp32-cpu-tp1", "ngram-fp32-cpu-tp1", "draft_target-fp32-cpu-tp1"]
    kinds = [step.kind for step in blueprint.steps]
    assert (kinds.count(StepKind.CHECKPOINT), kinds.count(StepKind.ENGINE), kinds.count(StepKind.REPOSITORY)) == (
        2,
        3,
        3,
    )
    assert len({variant.step_keys[0] for variant in blueprint.variants}) == 1
    assert [len(variant.step_keys) for variant in blueprint.variants] == [3, 3, 4]
    assert blueprint.step(blueprint.variants[2].repository_key).kind is StepKind.REPOSITORY


def test_each_step_comes_after_its_inputs(models: tuple[Source, Source]) -> None:
    seen: set[str] = set()
    blueprint = drawn(models)
    keys = {step.key for step in blueprint.steps}
    for step in blueprint.steps:
        assert all(key in seen for key in step.inputs if key in keys)
        seen.add(step.key)


def test_paths_are_no_part_of_a_key(models: tuple[Source, Source], tmp_path: Path) -> None:
    elsewhere = inspect(write_model(tmp_path / "moved"))
    assert by_label(drawn((elsewhere, models[1]))) == by_label(drawn(models))


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (("max_batch_size: 2", "max_batch_size: 4"), {"engine", "repository"}),
        (("[fp32]", "[fp16]"), {"checkpoint", "engine", "repository"}),
        (("verify: {", "serving: {max_queue_size: 9}\nverify: {"), {"repository"}),
        (("verify: {", "serving: {kv_cache_tokens: 99}\nverify: {"), {"engine", "repository"}),
        (("concurrency: [1, 2]", "concurrency: [1]"), set()),
        (("name: tiny", "name: other"), set()),
    ],
)
def test_what_a_change_reaches(models: tuple[Source, Source], change: tuple[str, str], kinds: set[str]) -> None:
    assert {label.split()[0] for label in changed(drawn(models), drawn(models, change))} == kinds


@pytest.mark.parametrize("section", ["limits", "serving"])
def test_no_option_is_without_effect(models: tuple[Source, Source], section: str) -> None:
    document = yaml.safe_load(TEXT)
    recipe = Recipe.model_validate(document)
    part = getattr(recipe, section)
    for name in type(part).model_fields:
        value = getattr(part, name)
        other = part.model_copy(update={name: 7 if value is None else value + 1})
        changed_recipe = recipe.model_copy(update={section: other})
        first, second = (draw(one, models[0], (models[1],), TOOLCHAIN, "0" * 64) for one in (recipe, changed_recipe))
        assert changed(first, second), name


SPECULATORS: dict[str, dict[str, object]] = {
    "ngram": {"max_draft_len": 5, "min_match": 2, "max_match": 4},
    "medusa": {"heads": 2, "choices": [[0], [1]], "max_draft_len": 9},
    "eagle": {
        "num_eagle_layers": 3,
        "choices": [[0], [1], [0, 0], [0, 0, 0], [0, 0, 0, 0]],
        "dynamic_tree_max_top_k": 2,
        "max_non_leaves_per_layer": 4,
        "max_draft_len": 9,
    },
    "eagle3": {"depth": 2, "dynamic_tree_max_top_k": 2, "max_draft_len": 9},
    "mtp": {"max_draft_len": 2},
}
NETWORKS = {
    "medusa": SpeculatorNetwork(SpeculatorKind.MEDUSA, 32, None, None, heads=4, head_layers=1),
    "eagle": SpeculatorNetwork(SpeculatorKind.EAGLE, 32, 50, 50),
    "eagle3": SpeculatorNetwork(SpeculatorKind.EAGLE3, 32, 50, 50),
    "mtp": SpeculatorNetwork(SpeculatorKind.MTP, 32, 50, 50),
}
# Which variants there are, not what is in them, follows from `precisions`.
NOT_OF_BYTES = {"kind", "path", "allow_pickle", "precisions"}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, changes in SPECULATORS.items() for name in changes])
def test_no_option_of_a_speculator_is_without_effect(models: tuple[Source, Source], kind: str, name: str) -> None:
    """Options were parsed, printed and dropped, and "speculation" was plain decoding (ml-explore/mlx-lm#1297)."""
    target = models[0]
    base: dict[str, object] = {"kind": kind} if kind == "ngram" else {"kind": kind, "path": "heads"}
    if name == "max_draft_len" and kind == "eagle3":
        base["dynamic_tree_max_top_k"] = 3
    network = NETWORKS.get(kind)
    heads = ()
    if network is not None:
        decoder = None if kind == "medusa" else replace(target.network, layers=1)
        source = replace(HEADS, network=replace(network, decoder=decoder), path="heads")
        heads = (source,)

    def made(speculator: dict[str, object]) -> Blueprint:
        document = {**yaml.safe_load(TEXT.replace("max_seq_len: 64", "max_seq_len: 100")), "speculators": [speculator]}
        return draw(Recipe.model_validate(document), target, (), TOOLCHAIN, "0" * 64, heads=heads)

    assert changed(made(base), made({**base, name: SPECULATORS[kind][name]}))


@pytest.mark.parametrize("kind", SPECULATORS)
def test_every_option_of_a_speculator_is_tried(kind: str) -> None:
    part = {"medusa": MedusaSpeculator, "eagle": EagleSpeculator, "eagle3": Eagle3Speculator, "mtp": MtpSpeculator}
    fields = set(part.get(kind, NgramSpeculator).model_fields) - NOT_OF_BYTES
    assert fields == set(SPECULATORS[kind])


def test_a_speculator_reaches_its_own_variant(models: tuple[Source, Source]) -> None:
    labels = changed(drawn(models), drawn(models, ("max_draft_len: 3", "max_draft_len: 4")))
    assert labels == {"engine ngram-fp32-cpu-tp1", "repository ngram-fp32-cpu-tp1"}


def test_guests_reach_repositories_alone(models: tuple[Source, Source]) -> None:
    labels = changed(drawn(models), drawn(models, guests="1" * 64))
    assert {label.split()[0] for label in labels} == {"repository"}


def test_two_of_a_kind_are_numbered(models: tuple[Source, Source]) -> None:
    more = ("  - {kind: ngram, max_draft_len: 3}\n", "  - {kind: ngram, max_draft_len: 3}\n" * 2)
    more = (more[0], more[1].replace("3}", "2}", 1))
    names = [variant.name for variant in drawn(models, more).variants]
    assert names[1:3] == ["ngram-fp32-cpu-tp1", "ngram_2-fp32-cpu-tp1"]


def test_the_third_eagle_is_no_eagle3() -> None:
    eagle, other = "{kind: eagle, path: e, max_draft_len: 4}", "{kind: eagle3, path: e}"
    text = TEXT.replace(
        "  - {kind: ngram, max_draft_len: 3}\n", "".join(f"  - {one}\n" for one in [eagle] * 3 + [other])
    )
    text = text.replace("  - {kind: draft_target, path: draft, max_draft_len: 2}\n", "")
    named = ways(Recipe.model_validate(yaml.safe_load(text)), (), (HEADS,) * 4)
    assert [way.name for way in named] == ["none", "eagle", "eagle_2", "eagle_3", "eagle3"]


def test_what_does_not_fit_is_told_together(models: tuple[Source, Source]) -> None:
    changes = (("{path: target}", "{path: target, tp_size: 3}"), ("max_seq_len: 64", "max_seq_len: 4096"))
    with pytest.raises(Failure, match=r"tp_size 3 does not fit the target.*max_seq_len 4096 exceeds the target's"):
        drawn(models, *changes)


def test_kv_tokens() -> None:
    recipe = Recipe.model_validate(yaml.safe_load(TEXT))
    assert kv_cache_tokens(recipe) == 2 * 64


def test_states_and_reasons(models: tuple[Source, Source]) -> None:
    before = drawn(models)
    after = drawn(models, ("max_batch_size: 2", "max_batch_size: 4"))
    have = frozenset(step.key for step in before.steps)
    assert {step.state for step in explain(before, have, before.steps)} == {StepState.HAVE}
    assert {step.state for step in explain(before, frozenset(), ())} == {StepState.MISSING}
    told = {step.label: step for step in explain(after, have, before.steps)}
    assert told["checkpoint target fp32 tp1 pp1"].reason == "have"
    reason = told["engine ngram-fp32-cpu-tp1"].reason
    assert reason == "changed: limits.max_batch_size 2 -> 4, serving.kv_cache_tokens 128 -> 256"
    assert "limits.max_batch_size 2 -> 4" in told["repository none-fp32-cpu-tp1"].reason
    assert "engine none-fp32-cpu-tp1 " in told["repository none-fp32-cpu-tp1"].reason


def test_memory_is_counted_from_configurations(models: tuple[Source, Source]) -> None:
    blueprint = drawn(models)
    plain, _, drafted = (variant_memory(blueprint, variant) for variant in blueprint.variants)
    parts = {part.part: part.bytes for part in plain.parts}
    assert parts["target weights"] == models[0].parameter_count * 4
    assert parts["target KV cache"] == 128 * 2 * 3 * 2 * 8 * 4
    assert parts["logits"] == 2 * 50 * 4
    assert plain.total_bytes == sum(parts.values())
    assert {part.part: part.bytes for part in drafted.parts}["draft weights"] == models[1].parameter_count * 4


def test_on_a_cpu_half_weights_have_a_cache_in_float32(models: tuple[Source, Source]) -> None:
    blueprint = drawn(models, ("precisions: [fp32]", "precisions: [fp16]"))
    parts = {part.part: part.bytes for part in variant_memory(blueprint, blueprint.variants[0]).parts}
    assert parts["target weights"] == models[0].parameter_count * 2
    assert parts["target KV cache"] == 128 * 2 * 3 * 2 * 8 * 4


def test_a_speculator_may_be_built_in_some_precisions_alone(models: tuple[Source, Source]) -> None:
    wide = ("[fp32]", "[fp32, fp16]")
    names = {variant.name for variant in drawn(models, wide).variants}
    some = drawn(
        models, wide, ("{kind: ngram, max_draft_len: 3}", "{kind: ngram, max_draft_len: 3, precisions: [fp32]}")
    )
    assert names - {variant.name for variant in some.variants} == {"ngram-fp16-cpu-tp1"}
    with pytest.raises(ValueError, match="which the recipe does not build"):
        drawn(models, ("{kind: ngram, max_draft_len: 3}", "{kind: ngram, max_draft_len: 3, precisions: [bf16]}"))
