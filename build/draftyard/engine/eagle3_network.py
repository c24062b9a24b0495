"""The drafter of EAGLE-3: it reads three of the target's layers and is taught tokens, not features.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025), section
3. The features are the residual streams before layers 2, n/2 and n-3 of the target. The first layer's attention reads
the embedding and the state side by side, each through its own norm; the residual is the state. Later drafting steps
get the state that left the layer, before the final norm.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape
from draftyard.engine.drafter_network import DrafterNetwork, Norm
from draftyard.engine.drafter_weights import (
    Checklist,
    DrafterParts,
    Names,
    Room,
    TargetParts,
    draft_size,
    drafter_shape,
)
from draftyard.engine.linear import Linear
from draftyard.engine.weights import RankFiles
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure

_NAMES = Names(
    embedding="eagle3.vocab_embedding.weight",
    head="eagle3.lm_head.weight",
    offsets="eagle3.d2t",
    final_norm="eagle3.ln_f.weight",
)


class Eagle3Junction:
    """`fc` maps the features of all taps, [n, taps * target hidden], to a state [n, hidden]."""

    def __init__(self, fc: Linear, embedding_norm: Norm, state_norm: Norm) -> None:
        self._fc = fc
        self._embedding_norm = embedding_norm
        self._state_norm = state_norm

    def enter(self, features: Tensor) -> Tensor:
        """Low, middle and high features become one state."""
        return self._fc(features)

    def join(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The stream is the state; attention reads [normed embedding | normed state], twice as wide."""
        return states.clone(), torch.cat((self._embedding_norm(embedded), self._state_norm(states)), dim=1)


def eagle3_taps(pretrained: Mapping[str, Json], target: DecoderShape) -> tuple[int, ...]:
    """Layers of the target behind which its features are taken; Failure when it has no such layers."""
    value = pretrained.get("taps")
    listed = value if isinstance(value, list) else []
    taps = tuple(tap for tap in listed if isinstance(tap, int) and not isinstance(tap, bool))
    if not taps or len(taps) != len(listed) or not all(0 <= tap <= target.layers for tap in taps):
        message = f"taps of the EAGLE-3 drafter must be layers of 0..{target.layers}, not {value!r}"
        raise Failure(message, "convert the drafter again, for this target", ExitCode.ENVIRONMENT)
    return taps


def read_eagle3(pretrained: Mapping[str, Json], files: RankFiles, target: TargetParts, room: Room) -> DrafterNetwork:
    """The net of an `Eagle3Drafter` checkpoint; Failure names every tensor that is missing or does not fit."""
    shape = drafter_shape(pretrained)
    hidden, size = shape.hidden_size, draft_size(pretrained, shape)
    ranks = files.renamed("eagle3.layers", shape)
    checks = Checklist(ranks, shape, target.shape)
    features = len(eagle3_taps(pretrained, target.shape)) * target.shape.hidden_size
    checks.need(None, "eagle3.fc.weight", (hidden, features))
    checks.need(None, "eagle3.ln_f.weight", (hidden,))
    checks.vocabulary(_NAMES, size)
    checks.layers(2 * hidden, ("input_layernorm", "hidden_norm"))
    checks.done()
    parts = DrafterParts(ranks, shape, target, room)
    norms = parts.norm(0, "input_layernorm.weight"), parts.norm(0, "hidden_norm.weight")
    return parts.network(Eagle3Junction(parts.matrix("eagle3.fc.weight"), *norms), _NAMES, size)
