"""Command lines of the engine builder: whole against golden files, and understood by the builder's own parser."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import trtllm_build
from tests.fakes.engine_builds import MODES, checkpoint, engine_build

from draftyard.nouns.gpu import Gpu
from draftyard.rules.build_argv import (
    BuildPlaces,
    argv_text,
    build_argv,
    build_options,
    expected_build_config,
    step_tokens,
    stored_seq_len,
)
from draftyard.rules.build_options import ONOFF, OPTIONS, OptionType, value_problem
from draftyard.rules.build_refusals import build_problems

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "trtllm-build"
PLACES = BuildPlaces("/in/checkpoint", "/out/engine", "/out/engine/timing.cache")
GPUS = (Gpu.H100_SXM, Gpu.H200_SXM)


def rendered(kind: str, precision: str) -> str:
    """All command lines of one kind, or why there is none."""
    parts = []
    for gpu in GPUS:
        for tp_size in (1, 2, 4, 8):
            build = engine_build(kind, precision, gpu, tp_size)
            problems = build_problems(build)
            text = "".join(f"refused: {one.message}; {one.hint}\n" for one in problems) or argv_text(
                build_argv(build, PLACES, "trtllm-build")
            )
            parts.append(f"# {kind} {precision} {gpu} tp{tp_size}\n{text}")
    return "\n".join(parts)


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
@pytest.mark.parametrize("kind", MODES)
def test_command_lines_are_the_golden_ones(kind, precision):
    path = GOLDEN / f"{kind}-{precision}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered(kind, precision), encoding="utf-8")
    assert rendered(kind, precision) == path.read_text(encoding="utf-8")


def test_the_table_of_options_is_the_builders():
    """Names, defaults and choices of our table and of a parser written apart from it, both ways."""
    actions = {action.dest: action for action in trtllm_build.parser()._actions if action.dest != "help"}
    assert set(actions) == set(OPTIONS)
    for name, option in OPTIONS.items():
        default = actions[name].default
        assert option.default == (None if default is None or default is False else str(default)), name
        assert sorted(actions[name].choices or ()) == sorted(option.choices), name
        assert (actions[name].type is int) == (option.type is OptionType.NUMBER), name
        assert (actions[name].nargs == 0) == (option.type is OptionType.SWITCH), name


@pytest.mark.parametrize("kind", MODES)
def test_the_builder_understands_what_is_written_and_gives_it_back(kind):
    build = engine_build(kind)
    arguments = trtllm_build.parser().parse_args(build_argv(build, PLACES, "trtllm-build")[1:])
    emitted = trtllm_build.engine_config(arguments, dict(build.checkpoint), set())["build_config"]
    expected = expected_build_config(build)
    plugins = expected.pop("plugin_config")
    assert {name: emitted[name] for name in expected} == expected
    assert {name: emitted["plugin_config"][name] for name in plugins} == plugins


@pytest.mark.parametrize("kind", MODES)
def test_every_value_is_one_the_builder_takes(kind):
    for name, value in build_options(engine_build(kind, "fp16")).items():
        assert value_problem(OPTIONS[name], value) is None, name


@given(
    batch=st.integers(1, 512),
    draft=st.integers(1, 256),
    tokens=st.integers(1, 20000),
    seq_len=st.integers(64, 40000),
    kind=st.sampled_from(sorted(set(MODES) - {"draft"})),
)
def test_sizes_are_what_the_builder_would_store(batch, draft, tokens, seq_len, kind):
    config = checkpoint(trtllm_llama(), "fp16", 1, kind)
    if kind in ("medusa", "eagle"):
        config["max_draft_len"] = draft
    build = replace(
        engine_build(kind, tp_size=1),
        checkpoint=config,
        max_batch_size=batch,
        max_draft_len=0 if kind == "plain" else draft,
        max_num_tokens=tokens,
        max_seq_len=seq_len,
    )
    arguments = trtllm_build.parser().parse_args(build_argv(build, PLACES, "trtllm-build")[1:])
    seq, stored, _ = trtllm_build.build_sizes(arguments, config)
    assert (seq, stored) == (stored_seq_len(build), step_tokens(build))


def trtllm_llama():
    from tests.fakes.engine_builds import LLAMA_1B

    return LLAMA_1B


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tokens_per_block", "48", "power of two"),
        ("tokens_per_block", "0", "whole number from 1"),
        ("max_batch_size", "-1", "whole number"),
        ("context_fmha", "on", "enable, disable"),
        ("strip_plan", "yes", "takes no value"),
    ],
)
def test_values_the_builder_would_refuse(name, value, words):
    assert words in str(value_problem(OPTIONS[name], value))


def test_a_switch_of_the_builder_is_spelt_as_it_spells_it():
    assert OPTIONS["use_paged_context_fmha"].choices == ONOFF
