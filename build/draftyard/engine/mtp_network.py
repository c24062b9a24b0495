"""The multi-token prediction module of DeepSeek-V3, used as a drafter again and again.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2. The state is the target's hidden state behind its final
norm, and in later steps the module's own behind its final norm: what TensorRT-LLM 1.2.1 (`modeling_deepseekv3`) and
SGLang (`deepseek_nextn`) feed. vLLM feeds later steps the state before that norm; `hnorm` makes them alike up to the
norm's weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

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

MTP_TAPS: tuple[int, ...] = (-1,)
_NAMES = Names(
    embedding="mtp.vocab_embedding.weight",
    head="mtp.lm_head.weight",
    offsets="mtp.d2t",
    final_norm="mtp.ln_f.weight",
)


class MtpJunction:
    """eh_proj([enorm(embedding of t_{i+1}) | hnorm(h_i)]); an ordinary layer follows."""

    def __init__(self, projection: Linear, embedding_norm: Norm, state_norm: Norm) -> None:
        self._projection = projection
        self._embedding_norm = embedding_norm
        self._state_norm = state_norm

    def enter(self, features: Tensor) -> Tensor:
        """A feature is a state."""
        return features

    def join(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[n, hidden] twice -> [n, hidden]."""
        return self._projection(torch.cat((self._embedding_norm(embedded), self._state_norm(states)), dim=1)), None


def read_mtp(pretrained: Mapping[str, Json], files: RankFiles, target: TargetParts, room: Room) -> DrafterNetwork:
    """The module of an `MtpDrafter` checkpoint; Failure names every tensor that is missing or does not fit."""
    shape = drafter_shape(pretrained)
    hidden, size = shape.hidden_size, draft_size(pretrained, shape)
    ranks = files.renamed("mtp.layers", shape)
    checks = Checklist(ranks, shape, target.shape)
    checks.same_hidden_size("the module reads the target's own states")
    checks.need(None, "mtp.eh_proj.weight", (hidden, 2 * hidden))
    for name in ("enorm", "hnorm", "ln_f"):
        checks.need(None, f"mtp.{name}.weight", (hidden,))
    checks.vocabulary(_NAMES, size)
    checks.layers(hidden, ("input_layernorm",))
    checks.done()
    parts = DrafterParts(ranks, shape, target, room)
    norms = parts.norm(None, "mtp.enorm.weight"), parts.norm(None, "mtp.hnorm.weight")
    junction = MtpJunction(parts.matrix("mtp.eh_proj.weight"), *norms)
    return parts.network(junction, _NAMES, size, states_normed=True)
