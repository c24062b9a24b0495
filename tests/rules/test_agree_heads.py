"""Limits that only some lanes have, and how embeddings are compared."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from tests.fakes.tiny_model import config_of
from tests.fakes.tiny_speculators import RECIPE

from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import HeadSpeculator, Recipe
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.rules.agree_heads import embedding_problems, head_problems, sampled_rows, taps_of
from draftyard.rules.draw_heads import head_speculators
from draftyard.rules.families.known_families import FAMILIES


def network_of(**changes: object) -> Network:
    network = FAMILIES["llama"].resolve(config_of(**changes)).network  # type: ignore[arg-type]
    assert network is not None
    return network


TARGET = network_of()
DECODER = network_of(num_hidden_layers=1)
EAGLE = SpeculatorNetwork(SpeculatorKind.EAGLE, 32, 50, 50, decoder=DECODER)


def recipe_of(speculator: str, lane: str = "tensorrt") -> tuple[Recipe, HeadSpeculator]:
    text = RECIPE.format(speculators=speculator, tp_size=1, pp_size=1, precision="fp16")
    recipe = Recipe.model_validate(yaml.safe_load(text.replace("[reference]", f"[{lane}]")))
    return recipe, head_speculators(recipe)[0]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (EAGLE, None),
        (
            replace(EAGLE, draft_vocab_size=20, own_head=True, mapped=True),
            "the tensorrt lane has no EAGLE with a reduced draft vocabulary (20 tokens)",
        ),
        (replace(EAGLE, decoder=replace(DECODER, family="qwen2")), "the tensorrt lane has EAGLE networks like Llama's"),
        (replace(EAGLE, decoder=replace(DECODER, qk_norm=True)), "the tensorrt lane has EAGLE networks like Llama's"),
    ],
)
def test_what_the_engine_flow_has_no_network_for(network: SpeculatorNetwork, message: str | None) -> None:
    text = "{kind: eagle, path: heads, num_eagle_layers: 2, max_draft_len: 4}"
    assert head_problems(*recipe_of(text, "reference"), network, TARGET) == []
    found = [problem.message for problem in head_problems(*recipe_of(text), network, TARGET)]
    assert found == [] if message is None else message in found[0]


@pytest.mark.parametrize(("layers", "taps"), [(32, (2, 16, 29)), (80, (2, 40, 77)), (3, (2, 1, 0)), (1, (1, 0, 0))])
def test_taps_are_near_the_start_the_middle_and_the_end(layers: int, taps: tuple[int, ...]) -> None:
    network = SpeculatorNetwork(SpeculatorKind.EAGLE3, 32, 50, 50, decoder=DECODER)
    assert taps_of(network, replace(TARGET, layers=layers)) == taps
    assert taps_of(replace(network, taps=(0, 1, 2)), replace(TARGET, layers=layers)) == (0, 1, 2)
    assert taps_of(EAGLE, TARGET) == ()


@pytest.mark.parametrize("rows", [1, 5, 255, 256, 257, 100_000])
def test_sampled_rows_are_spread_and_the_same_each_time(rows: int) -> None:
    chosen = sampled_rows(rows)
    assert len(chosen) == min(rows, 256) == len(set(chosen))
    assert (chosen[0], max(chosen) < rows) == (0, True)
    assert max(np.diff([*chosen, rows])) <= -(-rows // len(chosen))


def test_directions_of_rows_decide_not_their_lengths() -> None:
    table = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    rows = tuple(range(40))
    assert embedding_problems(table * 3, table, rows) == []
    assert embedding_problems(np.zeros_like(table), table, rows) == []
    (problem,) = embedding_problems(table[::-1], table, rows)
    assert "mean cosine" in problem.message
    few = table.copy()
    few[:4] = -few[:4]
    assert embedding_problems(few, table, rows) == []
