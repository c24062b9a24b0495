"""The drafter of EAGLE-1 and EAGLE-2: one layer that predicts the target's next feature from the last one.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024), section 3; EAGLE-2 (2024) keeps
the network and changes the tree. A feature is the target's hidden state behind its final norm, so what the network
predicts goes into the target's head as it is: the drafter has no final norm, and its first layer no norm before the
attention.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from draftyard.engine.configuration import section
from draftyard.engine.drafter_network import DrafterNetwork
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
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure

EAGLE_TAPS: tuple[int, ...] = (-1,)
_DRAFTER = "eagle_nets.0.drafter"
_NAMES = Names(
    embedding=f"{_DRAFTER}.vocab_embedding.weight",
    head="eagle_nets.0.lm_head.weight",
    offsets="eagle_nets.0.d2t",
    final_norm=None,
)


class EagleJunction:
    """fc([embedding of t_{i+1} | f_i]) + bias, the columns in this order (`fc_after_embed` of TensorRT-LLM 1.2.1)."""

    def __init__(self, fc: Linear) -> None:
        self._fc = fc

    def enter(self, features: Tensor) -> Tensor:
        """A feature is a state."""
        return features

    def join(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[n, hidden] twice -> [n, hidden]; the first layer has no norm of its own."""
        return self._fc(torch.cat((embedded, states), dim=1)), None


def read_eagle(pretrained: Mapping[str, Json], target: TargetParts, room: Room) -> DrafterNetwork:
    """The net `eagle_nets.0` of a merged `EagleForCausalLM` checkpoint, which lies in the target's own files.

    TensorRT-LLM 1.2.1 stores the same net once per drafting step; the copies are not read. A reduced head with `d2t`
    is an addition of this lane. Failure names every tensor that is missing or does not fit.
    """
    if target.shape.pp_size > 1:
        raise Failure("an EAGLE net is not read over pipeline stages", "build the checkpoint with pp_size 1")
    net = section(pretrained, "eagle_net_config")
    shape = drafter_shape({**net, "mapping": {"tp_size": target.shape.tp_size, "pp_size": 1}})
    hidden, size = shape.hidden_size, draft_size(net, shape)
    ranks = target.ranks.renamed(f"{_DRAFTER}.layers", shape)
    checks = Checklist(ranks, shape, target.shape)
    checks.same_hidden_size("EAGLE predicts the target's own features")
    checks.need(None, f"{_DRAFTER}.fc.weight", (hidden, 2 * hidden), 0)
    biased = checks.may(f"{_DRAFTER}.fc.bias", (hidden,), 0)
    checks.vocabulary(_NAMES, size)
    checks.layers(hidden, ())
    checks.done()
    parts = DrafterParts(ranks, shape, target, room)
    fc = parts.matrix(f"{_DRAFTER}.fc.weight", 0, f"{_DRAFTER}.fc.bias" if biased else None)
    return parts.network(EagleJunction(fc), _NAMES, size, bare=True)
