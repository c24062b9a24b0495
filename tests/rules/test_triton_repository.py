"""A plan becomes five configurations: whole against golden files, and sound whatever the numbers are."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.triton_repository import SPECULATORS, plan_of

from draftyard.doors.model_config import config_text, parse_config
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Eagle3Speculator,
    EagleSpeculator,
    Limits,
    LookaheadSpeculator,
    MedusaSpeculator,
    MtpSpeculator,
    Serving,
    Speculator,
)
from draftyard.nouns.repository import LogitsType, ModelName, Repository, RepositoryPlan
from draftyard.rules.triton_checks import repository_problems
from draftyard.rules.triton_repository import draw_repository, repository_parameters

HEADS: dict[str, Speculator] = {
    "medusa": MedusaSpeculator(kind=SpeculatorKind.MEDUSA, path="heads", max_draft_len=16),
    "eagle": EagleSpeculator(kind=SpeculatorKind.EAGLE, path="eagle", dynamic_tree_max_top_k=4),
    "eagle3": Eagle3Speculator(kind=SpeculatorKind.EAGLE3, path="eagle3"),
    "mtp": MtpSpeculator(kind=SpeculatorKind.MTP, path="mtp", max_draft_len=2),
}
TENSORRT_SPECULATORS = {
    "none": None,
    "draft_target": DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="draft", max_draft_len=5),
    "medusa": MedusaSpeculator(kind=SpeculatorKind.MEDUSA, path="heads"),
    "eagle": EagleSpeculator(kind=SpeculatorKind.EAGLE, path="eagle"),
    "lookahead": LookaheadSpeculator(kind=SpeculatorKind.LOOKAHEAD),
}
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "repository"


def parameters(name: str, **changes: object) -> dict[str, object]:
    given_values: dict[str, object] = {
        "lane": Lane.REFERENCE,
        "limits": Limits(),
        "serving": Serving(),
        "speculator": SPECULATORS[name],
        "kv_cache_tokens": 16384,
        "end_ids": (2, 128009),
        "vocab_size": 49152,
        "logits_dtype": "float32",
        "guests_digest": "0" * 64,
    }
    return dict(repository_parameters(**{**given_values, **changes}))


REPOSITORIES = {
    **{f"reference-{name}": parameters(name) for name in SPECULATORS},
    **{f"reference-{name}": parameters("none", speculator=HEADS[name]) for name in ("eagle3", "mtp")},
    **{
        f"tensorrt-{name}": parameters("none", lane=Lane.TENSORRT, speculator=speculator, ranks=2)
        for name, speculator in TENSORRT_SPECULATORS.items()
    },
}


def plan_named(name: str) -> RepositoryPlan:
    return RepositoryPlan.model_validate(REPOSITORIES[name]["plan"])


@pytest.mark.parametrize("name", REPOSITORIES)
def test_configurations_are_the_golden_ones(name):
    texts = {model.name: config_text(model) for model in draw_repository(plan_named(name)).models}
    if os.environ.get("UPDATE_GOLDEN") == "1":
        for model, text in texts.items():
            path = GOLDEN / name / model / "config.pbtxt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    folders = sorted(path.name for path in (GOLDEN / name).iterdir())
    assert folders == sorted(texts)
    for model, text in texts.items():
        assert text == (GOLDEN / name / model / "config.pbtxt").read_text(encoding="utf-8"), model


@pytest.mark.parametrize("name", HEADS)
def test_the_reference_engine_speculates_by_itself(name):
    """Nothing in its configurations tells what drafts: the engine's own config does."""
    plan = RepositoryPlan.model_validate(parameters("none", speculator=HEADS[name])["plan"])
    assert plan.speculator == name
    assert draw_repository(plan) == draw_repository(plan_named("reference-none"))


@pytest.mark.parametrize("name", REPOSITORIES)
def test_every_repository_would_load(name):
    drawn = draw_repository(plan_named(name))
    assert repository_problems(drawn) == ()
    assert all(parse_config(config_text(model), model.name) == model for model in drawn.models)


def test_trees_are_told_in_the_backends_own_spelling():
    tree = MedusaSpeculator(kind=SpeculatorKind.MEDUSA, path="m", choices=((0,), (1,), (0, 0)))
    plan = parameters("none", lane=Lane.TENSORRT, speculator=tree)["plan"]
    engine = draw_repository(RepositoryPlan.model_validate(plan)).model(ModelName.ENGINE)
    assert dict(engine.parameters)["medusa_choices"] == "{0}, {1}, {0, 0}"
    assert dict(engine.parameters)["decoding_mode"] == "medusa"


def test_a_tree_that_grows_cannot_be_told_to_the_backend():
    grown = EagleSpeculator(kind=SpeculatorKind.EAGLE, path="e", dynamic_tree_max_top_k=4)
    with pytest.raises(Failure, match="dynamic tree"):
        parameters("none", lane=Lane.TENSORRT, speculator=grown)


def test_two_engines_share_the_memory_and_name_their_gpus():
    drawn = draw_repository(plan_named("tensorrt-draft_target"))
    target, draft = (dict(drawn.model(name).parameters) for name in (ModelName.ENGINE, ModelName.DRAFT_ENGINE))
    assert (target["gpu_device_ids"], draft["gpu_device_ids"]) == ("0,1", "0")
    assert float(target["kv_cache_free_gpu_mem_fraction"]) + float(draft["kv_cache_free_gpu_mem_fraction"]) <= 1
    assert dict(drawn.model(ModelName.ENTRY).parameters)["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"


@pytest.mark.parametrize(
    ("without", "words"),
    [(ModelName.DRAFT_ENGINE, "is no model of the repository"), ("parameter", "the entry has no")],
)
def test_a_draft_and_the_entry_go_together(without, words):
    drawn = draw_repository(plan_named("tensorrt-draft_target"))
    models = tuple(model for model in drawn.models if model.name != without)
    if without == "parameter":
        key = "tensorrt_llm_draft_model_name"
        models = tuple(
            replace(model, parameters=tuple(pair for pair in model.parameters if pair[0] != key)) for model in models
        )
    assert words in " ".join(problem.message for problem in repository_problems(Repository(models)))


@pytest.mark.parametrize("name", SPECULATORS)
def test_the_plan_travels_as_json(name):
    given_parameters = parameters(name)
    assert given_parameters["lane"] == "reference"
    plan = RepositoryPlan.model_validate(given_parameters["plan"])
    assert plan.speculator == name
    assert plan.max_draft_len == {"none": 0, "ngram": 4, "draft_target": 3}[name]


PLANS = st.builds(
    plan_of,
    max_batch_size=st.integers(1, 512),
    max_input_len=st.integers(1, 10**6),
    max_seq_len=st.integers(1, 10**6),
    kv_cache_tokens=st.integers(1, 10**9),
    max_queue_size=st.integers(1, 10**5),
    default_timeout_s=st.floats(0.001, 10**6),
    end_ids=st.lists(st.integers(0, 200_000), max_size=4).map(tuple),
    vocab_size=st.integers(1, 300_000),
    logits_type=st.sampled_from(list(LogitsType)),
    decoupled=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(PLANS)
def test_every_plan_gives_a_sound_repository_that_reads_back(plan):
    repository = draw_repository(plan)
    assert repository_problems(repository) == ()
    for model in repository.models:
        assert parse_config(config_text(model), model.name) == model
    assert {model.max_batch_size for model in repository.models} == {plan.max_batch_size}


def test_each_option_is_visible():
    repository = draw_repository(
        plan_of(max_batch_size=3, max_queue_size=5, default_timeout_s=1.5, kv_cache_tokens=77, max_input_len=11,
                max_seq_len=22, end_ids=(9, 8), vocab_size=33, logits_type=LogitsType.FLOAT16, decoupled=False)
    )  # fmt: skip
    engine = repository.model(ModelName.ENGINE)
    assert dict(engine.parameters)["max_tokens_in_paged_kv_cache"] == "77"
    assert engine.queue is not None
    assert (engine.queue.max_queue_size, engine.queue.default_timeout_us) == (5, 1_500_000)
    assert not engine.decoupled
    assert [tensor.type for tensor in engine.tensors.outputs if tensor.name.endswith("_logits")] == ["FP16", "FP16"]
    preprocessing = dict(repository.model(ModelName.PREPROCESSING).parameters)
    assert (preprocessing["max_input_len"], preprocessing["max_seq_len"]) == ("11", "22")
    assert (preprocessing["vocab_size"], preprocessing["end_ids"]) == ("33", "9,8")
    entry = dict(repository.model(ModelName.ENTRY).parameters)
    assert (entry["default_timeout_s"], entry["max_streams"], entry["end_ids"]) == ("1.5", "8", "9,8")
    assert "end_ids" not in dict(draw_repository(plan_of(end_ids=())).model(ModelName.ENTRY).parameters)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lane": Lane.LLMAPI, "speculator": None}, "llmapi lane"),
        ({"lane": Lane.TENSORRT}, "tensorrt lane with ngram"),
        ({"logits_dtype": "bfloat16"}, "logits of type bfloat16"),
    ],
)
def test_what_cannot_be_served_is_refused(changes, message):
    with pytest.raises(Failure, match=message):
        parameters("ngram", **changes)
