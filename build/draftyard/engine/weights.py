"""Weights of one decoder, put together from the rank files of a TensorRT-LLM checkpoint."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftyard.engine.configuration import DecoderShape
from draftyard.engine.experts import Expert, SparseFeedForward
from draftyard.engine.linear import GatedFeedForward, Linear, Site, half_stored_available, make_linear
from draftyard.engine.rotary import pair_order
from draftyard.engine.scaled_linear import RoundedInputLinear, ScaledLinear, values_of
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorFile, TensorType

TORCH_TYPES: Mapping[TensorType, torch.dtype] = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
    # As bytes: hardly any operation is defined on torch's own type.
    TensorType.F8_E4M3: torch.uint8,
}


class MakeLinear(Protocol):
    """Holds a weight [out, in] for the kernel that the device and the type ask for; `site` finds the scales of FP8."""

    def __call__(self, weight: Tensor, bias: Tensor | None = None, site: Site | None = None) -> Linear:
        """Hold it."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; `feed_forward` is [tokens, hidden] -> [tokens, hidden], dense or sparse.

    `input_norm` None is a layer that reads its input as it is (the first one of an EAGLE-1 drafter). `cache_scale` is
    that of keys and values in an FP8 cache.
    """

    input_norm: Tensor | None
    qkv: Linear
    dense: Linear
    post_norm: Tensor
    feed_forward: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    cache_scale: float | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All of a decoder; `embedding` is [vocabulary, hidden] in its stored type; drafters may lack a final norm."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor | None
    head: Linear


class RankFiles:
    """Reads whole tensors over tensor-parallel ranks; stages of the pipeline lie one after another.

    `layers` is the name that those of the layers begin with.
    """

    def __init__(self, files: Sequence[TensorFile], shape: DecoderShape, layers: str = "transformer.layers") -> None:
        self._files = files
        self._shape = shape
        self._layers = layers
        self._starts = _stage_starts(shape.layers, shape.pp_size)

    def renamed(self, layers: str, shape: DecoderShape) -> "RankFiles":
        """Another network in the same files."""
        return RankFiles(self._files, shape, layers)

    def has(self, layer: int | None, name: str) -> bool:
        """True when the tensor is stored (in the first rank of its stage)."""
        full, ranks = self._place(layer, name)
        return full in self._files[ranks[0]].headers

    def size(self, layer: int | None, name: str, dim: int | None) -> tuple[int, ...] | None:
        """Shape of `whole` from the headers alone; None when a rank lacks the tensor."""
        full, ranks = self._place(layer, name)
        shapes = [self._files[rank].headers[full].shape for rank in ranks if full in self._files[rank].headers]
        if len(shapes) < len(ranks):
            return None
        if dim is None or len(shapes) == 1:
            return shapes[0]
        return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])

    def integers(self, name: str) -> Tensor:
        """A table of whole numbers (int64), alike on every rank."""
        header = self._files[0].headers[name]
        if header.type is not TensorType.I64:
            raise Failure(f"{name} has the type {header.type}, not I64", "build the checkpoint again")
        return torch.frombuffer(bytearray(self._files[0].read(name)), dtype=torch.int64).reshape(header.shape)

    def pieces(self, layer: int | None, name: str) -> list[Tensor]:
        """The tensor's piece of each tensor-parallel rank."""
        full, ranks = self._place(layer, name)
        return [self._read(rank, full) for rank in ranks]

    def whole(self, layer: int | None, name: str, dim: int | None) -> Tensor:
        """The pieces joined along `dim`; None means that every rank holds the same."""
        pieces = self.pieces(layer, name)
        return pieces[0] if dim is None or len(pieces) == 1 else torch.cat(pieces, dim=dim)

    def qkv(self, layer: int, suffix: str) -> Tensor:
        """[Q; K; V] rows of all heads, those of Q and K in `pair_order`; copies of a shared KV head are dropped."""
        shape = self._shape
        q_rows = shape.heads // shape.tp_size * shape.head_size
        kv_rows = max(shape.kv_heads // shape.tp_size, 1) * shape.head_size
        parts = [
            torch.split(piece, [q_rows, kv_rows, kv_rows]) for piece in self.pieces(layer, f"attention.qkv.{suffix}")
        ]
        copies = max(shape.tp_size // shape.kv_heads, 1)
        order = pair_order(shape.head_size)
        turned = [part[0] for part in parts] + [part[1] for part in parts[::copies]]
        whole = torch.cat(turned)
        paired = whole.view(-1, shape.head_size, *whole.shape[1:])[:, order].reshape(whole.shape)
        return torch.cat([paired, *(part[2] for part in parts[::copies])])

    def scales(self, site: Site) -> tuple[Tensor, float]:
        """Weight scales, one for each module of a site, and the scale of their common input (the largest named)."""
        weight_scales, input_scales = [], []
        for module in site.modules:
            weights = self.whole(site.layer, f"{module}.weights_scaling_factor", None).flatten()
            weight_scales.append(weights[site.expert or 0])
            input_scales.append(self.whole(site.layer, f"{module}.activation_scaling_factor", None).item())
        return torch.stack(weight_scales), max(input_scales)

    def _place(self, layer: int | None, name: str) -> tuple[str, list[int]]:
        """Full name and the ranks of the stage that holds it: embedding first, final norm and head last."""
        tp_size, stage, full = self._shape.tp_size, 0, name
        if layer is not None:
            stage = max(index for index, start in enumerate(self._starts) if start <= layer)
            full = f"{self._layers}.{layer - self._starts[stage]}.{name}"
        elif not name.startswith("transformer.vocab_embedding"):
            stage = self._shape.pp_size - 1
        return full, list(range(stage * tp_size, (stage + 1) * tp_size))

    def _read(self, rank: int, name: str) -> Tensor:
        file = self._files[rank]
        if name not in file.headers:
            raise Failure(
                f"rank{rank}.safetensors has no tensor {name}", "build the checkpoint again", ExitCode.ENVIRONMENT
            )
        header = file.headers[name]
        if header.type not in TORCH_TYPES:
            raise Failure(f"{name} has the type {header.type}", "the reference lane reads F32, F16, BF16 and F8_E4M3")
        with warnings.catch_warnings():
            # The mapping is read-only, and so is every use of it.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(file.read(name), dtype=TORCH_TYPES[header.type]).reshape(header.shape)


def _stage_starts(layers: int, pp_size: int) -> list[int]:
    """First layer of each pipeline stage; the remainder goes to the first stages, as `torch.tensor_split` does."""
    sizes = [layers // pp_size + (1 if stage < layers % pp_size else 0) for stage in range(pp_size)]
    return [sum(sizes[:stage]) for stage in range(pp_size)]


def holding(dtype: str, device: torch.device, ranks: RankFiles | None = None) -> tuple[MakeLinear, torch.dtype]:
    """How weights of a stored type are held on a device, and the type of activations there.

    On the CPU float16 stays float16 in memory with float32 sums where FBGEMM runs; float32 and bfloat16 (widened,
    exactly) are multiplied in float32. On a GPU everything keeps its type. FP8 weights are bytes whose scales lie in
    `ranks`; on the CPU their values, which float16 holds exactly, are held as weights of the type are.
    """
    half_stored = device.type == "cpu" and dtype == "float16"
    if half_stored and not half_stored_available():
        raise Failure("this CPU cannot multiply float16 weights (FBGEMM needs AVX2)", "use precision fp32")
    wide = torch.float32 if device.type == "cpu" else TORCH_TYPES[_tensor_type(dtype)]

    def linear(weight: Tensor, bias: Tensor | None = None, site: Site | None = None) -> Linear:
        beside = None if bias is None else bias.to(device, wide)
        if weight.dtype is torch.uint8:
            return _scaled(weight, beside, site, ranks, half_stored, device, wide)
        return make_linear(weight if half_stored else weight.to(device, wide).contiguous(), beside, half_stored)

    return linear, wide


def _scaled(
    codes: Tensor,
    bias: Tensor | None,
    site: Site | None,
    ranks: RankFiles | None,
    half_stored: bool,
    device: torch.device,
    wide: torch.dtype,
) -> Linear:
    if site is None or ranks is None:
        raise Failure("a weight is FP8 where no scale is known", "build the checkpoint again", ExitCode.ENVIRONMENT)
    scales, input_scale = ranks.scales(site)
    rows = scales.repeat_interleave(codes.shape[0] // len(scales)) if len(scales) > 1 else scales
    values = values_of(codes)
    if device.type == "cpu":
        inner = make_linear(values if half_stored else values.float(), None, half_stored)
        return ScaledLinear(inner, rows * input_scale, input_scale, bias)
    dequantised = (values.float() * rows.unsqueeze(1)).to(device, wide)
    return RoundedInputLinear(make_linear(dequantised, bias, False), input_scale)


def read_embedding(ranks: RankFiles) -> Tensor:
    """The target's embedding [vocabulary, hidden] as stored."""
    return ranks.whole(None, "transformer.vocab_embedding.weight", None)


def read_head(ranks: RankFiles, shape: DecoderShape) -> Tensor:
    """The target's output head [vocabulary, hidden] as stored, without padding rows; the embedding where it is tied."""
    tied = not ranks.has(None, "lm_head.weight")
    return read_embedding(ranks) if tied else ranks.whole(None, "lm_head.weight", 0)[: shape.vocabulary]


def read_weights(files: Sequence[TensorFile], shape: DecoderShape, device: torch.device) -> DecoderWeights:
    """Weights ready to multiply, held as `holding` says."""
    ranks = RankFiles(files, shape)
    linear, wide = holding(shape.dtype, device, ranks)
    layers = tuple(read_layer(ranks, shape, layer, linear, device, wide) for layer in range(shape.layers))
    final_norm = ranks.whole(None, "transformer.ln_f.weight", None).to(device, wide)
    embedding = read_embedding(ranks).to(device).clone()
    return DecoderWeights(embedding, layers, final_norm, linear(read_head(ranks, shape), None, Site(("lm_head",))))


def read_layer(
    ranks: RankFiles,
    shape: DecoderShape,
    layer: int,
    linear: MakeLinear,
    device: torch.device,
    wide: torch.dtype,
    *,
    bare: bool = False,
) -> LayerWeights:
    """One layer; a `bare` one has no norm before its attention."""

    def vector(name: str) -> Tensor:
        return ranks.whole(layer, name, None).to(device, wide)

    def bias(name: str, dim: int | None) -> Tensor | None:
        return ranks.whole(layer, name, dim) if ranks.has(layer, name) else None

    pairs = pair_order(shape.head_size)
    qkv_bias = ranks.qkv(layer, "bias") if ranks.has(layer, "attention.qkv.bias") else None
    read_feed_forward = _read_experts if shape.experts else _read_feed_forward
    return LayerWeights(
        input_norm=None if bare else vector("input_layernorm.weight"),
        qkv=linear(ranks.qkv(layer, "weight"), qkv_bias, Site(("attention.qkv",), layer)),
        dense=linear(
            ranks.whole(layer, "attention.dense.weight", 1),
            bias("attention.dense.bias", None),
            Site(("attention.dense",), layer),
        ),
        post_norm=vector("post_layernorm.weight"),
        feed_forward=read_feed_forward(ranks, shape, layer, linear, device),
        q_norm=vector("attention.q_layernorm.weight")[pairs] if shape.qk_norm else None,
        k_norm=vector("attention.k_layernorm.weight")[pairs] if shape.qk_norm else None,
        cache_scale=ranks.whole(layer, "attention.kv_cache_scaling_factor", None).item() if shape.fp8_cache else None,
    )


def _read_feed_forward(
    ranks: RankFiles, shape: DecoderShape, layer: int, linear: MakeLinear, device: torch.device
) -> Linear:
    def bias(name: str, dim: int | None) -> Tensor | None:
        return ranks.whole(layer, name, dim) if ranks.has(layer, name) else None

    fc, gate = ranks.whole(layer, "mlp.fc.weight", 0), ranks.whole(layer, "mlp.gate.weight", 0)
    fc_bias, gate_bias = bias("mlp.fc.bias", 0), bias("mlp.gate.bias", 0)
    both = None if fc_bias is None or gate_bias is None else torch.cat((fc_bias, gate_bias))
    return GatedFeedForward(
        linear(torch.cat((fc, gate)), both, Site(("mlp.fc", "mlp.gate"), layer)),
        linear(ranks.whole(layer, "mlp.proj.weight", 1), bias("mlp.proj.bias", None), Site(("mlp.proj",), layer)),
        shape.intermediate_size,
    )


def _read_experts(
    ranks: RankFiles, shape: DecoderShape, layer: int, linear: MakeLinear, device: torch.device
) -> Linear:
    """Router and experts; each rank's `mlp.fc` holds its share of the linear rows, then that of the activated ones."""
    ups, downs = ranks.pieces(layer, "mlp.fc.weight"), ranks.pieces(layer, "mlp.proj.weight")
    experts = []
    for index in range(shape.experts):
        halves = [up[index].chunk(2) for up in ups]
        up_gate = torch.cat([half[0] for half in halves] + [half[1] for half in halves])
        down_rows = torch.cat([down[index] for down in downs], dim=1)
        up_site, down_site = Site(("mlp.fc",), layer, index), Site(("mlp.proj",), layer, index)
        experts.append(Expert(linear(up_gate, None, up_site), linear(down_rows, None, down_site)))
    router = ranks.whole(layer, "mlp.router.weight", None).to(device, torch.float32)
    return SparseFeedForward(router, experts, shape.experts_per_token, shape.experts_normalised)


def _tensor_type(dtype: str) -> TensorType:
    return {"float32": TensorType.F32, "float16": TensorType.F16, "bfloat16": TensorType.BF16}[dtype]
