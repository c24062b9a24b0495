"""What `draftyard inspect` shows of a directory, whether it holds a model or a speculator."""

from pathlib import Path

import pytest
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_speculators import (
    Weights,
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    write_speculator,
)

from draftyard.nouns.errors import Failure
from draftyard.verbs.source_facts import directory_facts


def test_a_model_is_shown_as_one(tmp_path: Path) -> None:
    facts = directory_facts(write_model(tmp_path))
    assert (facts["family"], facts["layers"], "speculator" in facts) == ("llama", 3, False)


@pytest.mark.parametrize(
    ("weights", "kind", "shown"),
    [
        (medusa_weights(3, 2), "medusa", {"heads": 3, "blocks_per_head": 2, "own_head": False, "vocab_size": 50}),
        (eagle_weights(), "eagle", {"hidden_size": 32, "layers": 1, "own_embedding": True}),
        (eagle3_weights(), "eagle3", {"draft_vocab_size": 20, "vocab_size": 50, "head_size": 8}),
        (mtp_weights(), "mtp", {"kv_heads": 2, "own_head": False}),
    ],
)
def test_a_speculator_is_shown_as_one(tmp_path: Path, weights: Weights, kind: str, shown: dict[str, object]) -> None:
    facts = directory_facts(write_speculator(tmp_path, weights, layer_config()))
    assert facts["speculator"] == kind
    assert {key: facts[key] for key in shown} == shown
    assert facts["size_bytes"] == sum(value.nbytes for value in weights.values())


def test_a_model_that_ends_in_a_module_is_judged_as_a_model(tmp_path: Path) -> None:
    config = config_of()
    write_model(tmp_path, config, {**random_weights(config), **mtp_weights(number=3)})
    with pytest.raises(Failure, match="LlamaForCausalLM has no place for"):
        directory_facts(tmp_path)


def test_no_directory_and_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="is no directory"):
        directory_facts(tmp_path / "nowhere")
    with pytest.raises(Failure, match=r"there is no config\.json"):
        directory_facts(tmp_path)
