"""Checks the stored tensors of a drafter, names at once all that is missing or does not fit, and puts it together."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.configuration import DecoderShape, decoder_shape, integer
from draftyard.engine.decoder import Decoder
from draftyard.engine.drafter_network import DrafterNetwork, DraftVocabulary, Junction, Norm
from draftyard.engine.linear import Linear
from draftyard.engine.weights import DecoderWeights, RankFiles, holding, read_embedding, read_head, read_layer
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems

AGAIN = "convert the drafter again, from the files that belong to this target"


@dataclass(frozen=True, slots=True)
class TargetParts:
    """What a drafter may borrow: the target's stored tensors, and those that its decoder already holds."""

    shape: DecoderShape
    ranks: RankFiles
    weights: DecoderWeights


@dataclass(frozen=True, slots=True)
class Room:
    """Where a drafter's cache lies and how much it holds: `rows` of each of `slots` sequences."""

    slots: int
    rows: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class Names:
    """What a network's tensors outside its layers are called; `final_norm` None: it has none."""

    embedding: str
    head: str
    offsets: str
    final_norm: str | None


def drafter_shape(pretrained: Mapping[str, Json]) -> DecoderShape:
    """The layers of a drafter; an activation that is not named is that of Llama."""
    return decoder_shape({"hidden_act": "silu", **pretrained})


def draft_size(pretrained: Mapping[str, Json], shape: DecoderShape) -> int:
    """Rows of a drafter's head."""
    return shape.vocabulary if pretrained.get("draft_vocab_size") is None else integer(pretrained, "draft_vocab_size")


class Checklist:
    """Compares stored tensors with what a network needs, from headers alone."""

    def __init__(self, ranks: RankFiles, shape: DecoderShape, target: DecoderShape) -> None:
        self._ranks = ranks
        self._shape = shape
        self._target = target
        self._problems: list[Problem] = []

    def need(self, layer: int | None, name: str, size: tuple[int, ...], dim: int | None = None) -> None:
        """A tensor of this whole size, split over ranks along `dim`."""
        found = self._ranks.size(layer, name, dim)
        shown = name if layer is None else f"layers.{layer}.{name}"
        if found is None:
            self._find(f"the drafter has no tensor {shown}")
        elif found != size:
            self._find(f"the drafter's {shown} is {list(found)} where {list(size)} fits")

    def may(self, name: str, size: tuple[int, ...], dim: int | None = None) -> bool:
        """A tensor that may be left out; True when it is there."""
        present = self._ranks.has(None, name)
        if present:
            self.need(None, name, size, dim)
        return present

    def same_hidden_size(self, why: str) -> None:
        """For a drafter that works in the target's own space."""
        own, target = self._shape.hidden_size, self._target.hidden_size
        if own != target:
            self._find(f"the drafter's hidden size is {own} and the target's {target}: {why}")

    def vocabulary(self, names: Names, size: int) -> None:
        """Embedding, head of `size` rows and its offsets; what is absent must be there to borrow."""
        hidden, whole = self._shape.hidden_size, self._target.vocabulary
        if self._shape.vocabulary != whole:
            self._find(f"the drafter has {self._shape.vocabulary} tokens and the target {whole}")
        if not self.may(names.embedding, (whole, hidden)):
            self.same_hidden_size("it has no embedding of its own and cannot borrow the target's")
        # The rows of a head are split over ranks in equal pieces, so the last piece may end in padding.
        padded = size + -size % self._shape.tp_size
        if not self.may(names.head, (padded, hidden), 0):
            self.same_hidden_size("it has no head of its own and cannot borrow the target's")
            if size != whole:
                self._find(f"the drafter has {size} of {whole} tokens and no head {names.head}")
        if size != whole:
            self.need(None, names.offsets, (size,))
        else:
            self.may(names.offsets, (size,))

    def layers(self, read: int, norms: tuple[str, ...]) -> None:
        """All layers; the first one's attention reads `read` values and has `norms` of its own before it."""
        shape, hidden, inner = self._shape, self._shape.hidden_size, self._shape.intermediate_size
        rows = (shape.heads + 2 * max(shape.kv_heads, shape.tp_size)) * shape.head_size
        for layer in range(shape.layers):
            for norm in (*(("input_layernorm",) if layer else norms), "post_layernorm"):
                self.need(layer, f"{norm}.weight", (hidden,))
            self.need(layer, "attention.qkv.weight", (rows, hidden if layer else read), 0)
            self.need(layer, "attention.dense.weight", (hidden, shape.heads * shape.head_size), 1)
            if not shape.experts:
                self.need(layer, "mlp.fc.weight", (inner, hidden), 0)
                self.need(layer, "mlp.gate.weight", (inner, hidden), 0)
                self.need(layer, "mlp.proj.weight", (hidden, inner), 1)

    def done(self) -> None:
        """Failure with all that was found."""
        raise_problems(self._problems, ExitCode.ENVIRONMENT)

    def _find(self, message: str) -> None:
        self._problems.append(Problem(message, AGAIN))


class DrafterParts:
    """Reads the tensors of a network that was checked."""

    def __init__(self, ranks: RankFiles, shape: DecoderShape, target: TargetParts, room: Room) -> None:
        self._ranks = ranks
        self._shape = shape
        self._target = target
        self._room = room
        self._linear, self._wide = holding(shape.dtype, room.device)

    def matrix(self, name: str, dim: int | None = None, bias: str | None = None) -> Linear:
        """A linear map, with a bias where one is named."""
        offset = None if bias is None else self._ranks.whole(None, bias, dim)
        return self._linear(self._ranks.whole(None, name, dim), offset)

    def norm(self, layer: int | None, name: str) -> Norm:
        """An RMS norm."""
        weight, epsilon = self._vector(layer, name), self._shape.norm_epsilon
        return lambda x: functional.rms_norm(x, (x.shape[-1],), weight, epsilon)

    def network(
        self, junction: Junction, names: Names, size: int, *, bare: bool = False, states_normed: bool = False
    ) -> DrafterNetwork:
        """The whole; a `bare` one's first layer has no norm before its attention, `size` is that of its vocabulary."""
        weights = DecoderWeights(
            self._embedding(names.embedding),
            tuple(
                read_layer(
                    self._ranks,
                    self._shape,
                    layer,
                    self._linear,
                    self._room.device,
                    self._wide,
                    bare=bare and layer == 0,
                )
                for layer in range(self._shape.layers)
            ),
            None if names.final_norm is None else self._vector(None, names.final_norm),
            self._head(names.head, size),
        )
        decoder = Decoder(self._shape, weights, self._room.slots, self._room.rows, self._room.device)
        return DrafterNetwork(decoder, junction, self._vocabulary(names.offsets, size), states_normed=states_normed)

    def _vector(self, layer: int | None, name: str) -> Tensor:
        return self._ranks.whole(layer, name, None).to(self._room.device, self._wide)

    def _embedding(self, name: str) -> Tensor:
        """The drafter's own; the target's where it has none or the same."""
        if not self._ranks.has(None, name):
            return self._target.weights.embedding
        own = self._ranks.whole(None, name, None)
        shared = torch.equal(own, read_embedding(self._target.ranks))
        return self._target.weights.embedding if shared else own.to(self._room.device).clone()

    def _head(self, name: str, size: int) -> Linear:
        """The drafter's own, without padding; the target's where it has none or the same."""
        if not self._ranks.has(None, name):
            return self._target.weights.head
        own = self._ranks.whole(None, name, 0)[:size]
        shared = torch.equal(own, read_head(self._target.ranks, self._target.shape))
        return self._target.weights.head if shared else self._linear(own)

    def _vocabulary(self, name: str, size: int) -> DraftVocabulary:
        """Each row of the head must stand for a token of the target, and no two for the same one."""
        if not self._ranks.has(None, name):
            return DraftVocabulary(size, None)
        offsets, whole = self._ranks.integers(name), self._target.shape.vocabulary
        token_ids = torch.arange(size) + offsets
        outside = token_ids[(token_ids < 0) | (token_ids >= whole)].tolist()
        hint = "d2t holds offsets: the token of a row is row + d2t[row]"
        if outside:
            raise Failure(f"{name} leads to token {outside[0]}, outside 0..{whole - 1}", hint, ExitCode.ENVIRONMENT)
        if int(token_ids.bincount().max()) > 1:
            raise Failure(f"{name} leads two rows to one token", hint, ExitCode.ENVIRONMENT)
        return DraftVocabulary(size, offsets.to(self._room.device))
