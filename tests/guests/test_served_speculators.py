"""Heads, EAGLE, EAGLE-3 and MTP from their files to the real server: the text is that of plain decoding.

N-gram lookup, draft models inside the engine and drafts that are engines of their own are served in tests beside this.
"""

import numpy as np
import pytest
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_speculators import (
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    write_heads_recipe,
    write_speculator,
)
from tests.guests.rig import complete, metric, value
from tests.verbs.test_build_heads import Silent

from draftyard.doors.triton import embedded_server
from draftyard.verbs.build import build
from draftyard.verbs.build_choices import BuildOptions
from draftyard.verbs.repositories import packaged

pytestmark = [pytest.mark.server, pytest.mark.slow]
STREAM = np.bool_(True)
WAYS = {
    "medusa": ("{kind: medusa, path: medusa, choices: [[0], [1], [0, 0], [0, 0, 0]]}", medusa_weights(), None),
    "eagle": (
        "{kind: eagle, path: eagle, num_eagle_layers: 2, choices: [[0], [1], [0, 0]]}",
        eagle_weights(embedding=False),
        layer_config(),
    ),
    "eagle3": (
        "{kind: eagle3, path: eagle3, depth: 2, dynamic_tree_max_top_k: 2}",
        eagle3_weights(draft_rows=None),
        layer_config(draft_vocab_size=50),
    ),
    "mtp": ("{kind: mtp, path: mtp, max_draft_len: 3}", mtp_weights(), layer_config()),
}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    root = tmp_path_factory.mktemp("heads")
    write_model(root / "target", config_of(), random_weights(config_of()))
    for name, (_, weights, config) in WAYS.items():
        write_speculator(root / name, weights, config)
    recipe, out = write_heads_recipe(root, *(words for words, _, _ in WAYS.values())), root / "out"
    build(recipe, BuildOptions(out), Silent())
    return {one.variant.name.split("-")[0]: one.repository for one in packaged(recipe, out)[1]}


@pytest.mark.parametrize("way", WAYS)
def test_streamed_is_unstreamed_is_plain(repositories, tmp_path, way):
    with embedded_server(repositories[way], log_path=tmp_path / "server.log") as running:
        for prompt in ("w5 w6 w7", "a a a w9"):
            values = {"text_input": prompt, "max_tokens": value(24), "end_id": value(-1)}
            url = running.address.grpc_url
            plain = complete(url, num_draft_tokens=value(0), stream=STREAM, **values)
            streamed, whole = complete(url, stream=STREAM, **values), complete(url, **values)
            assert plain.error == streamed.error == whole.error == ""
            assert plain.token_ids == streamed.token_ids == whole.token_ids
            assert plain.text == streamed.text == whole.text
            drafted, accepted = (streamed.last[f"total_{name}draft_tokens"].item() for name in ("", "accepted_"))
            # Drafts are counted by depth, so that there are never more than the tree is deep.
            assert len(streamed.texts) - 2 <= drafted <= 3 * (len(streamed.texts) - 1)
            assert len(streamed.texts) == 24 - accepted
            assert plain.last["total_draft_tokens"].item() == 0
        assert metric(running.address.metrics_url, "draftyard_contradictory_statistics_total") == 0
