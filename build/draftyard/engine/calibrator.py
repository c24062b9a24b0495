"""Measures the largest activations of a network, layer by layer, so that no more than one layer is in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from draftyard.engine.configuration import DecoderShape, decoder_shape
from draftyard.engine.decoder import Decoder
from draftyard.engine.key_value_cache import KeyValueCache
from draftyard.engine.linear import Linear, PlainLinear, Site
from draftyard.engine.runs import Run, run_window
from draftyard.engine.weights import DecoderWeights, RankFiles, read_embedding, read_layer
from draftyard.nouns.activation_ranges import ActivationRanges
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.tensor import TensorFile

# Of one pass; more would only need more memory.
_PASS_TOKENS = 2048
_PASS_SAMPLES = 16
HEAD = "lm_head"


class Meter:
    """The largest magnitude of what came by; None before anything did. A NaN stays."""

    def __init__(self) -> None:
        self._largest: Tensor | None = None

    def see(self, x: Tensor) -> None:
        """Take the elements of x into account."""
        if x.numel():
            most = x.abs().amax()
            self._largest = most if self._largest is None else torch.maximum(self._largest, most)

    @property
    def largest(self) -> float | None:
        """max |x| so far."""
        return None if self._largest is None else self._largest.item()


class MeteredLinear:
    """A product whose input is measured."""

    def __init__(self, inner: Linear, meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        self._meter.see(x)
        return self._inner(x)


class MeteredCache(KeyValueCache):
    """A cache that measures what is stored in it."""

    def __init__(self, shape: DecoderShape, slots: int, positions: int, device: torch.device) -> None:
        super().__init__(shape, slots, positions, device, torch.float32)
        self.key_meter, self.value_meter = Meter(), Meter()

    def store(self, layer: int, slots: Tensor, positions: Tensor, pairs: Tensor) -> None:
        """Write key (after rotation) and value of each token of one layer."""
        self.key_meter.see(pairs[:, 0])
        self.value_meter.see(pairs[:, 1])
        super().store(layer, slots, positions, pairs)


def measure_ranges(
    file: TensorFile,
    config: Mapping[str, Json],
    samples: Sequence[tuple[int, ...]],
    scratch: Path,
    progress: Callable[[float, str], None],
    device: str = "cpu",
) -> ActivationRanges:
    """Run all samples (token ids each) through one layer after another and keep the largest activations.

    `file` holds an unsharded checkpoint with this `config`. Activations are float32. The residual stream of all samples
    lies in the file `scratch` (tokens x hidden x 4 bytes), which has no name any more once it is open. Failure when a
    token has no row in the embedding or an activation is no finite number.
    """
    shape = decoder_shape(config)
    place, ranks = torch.device(device), RankFiles([file], shape)
    stream = _embedded(ranks, shape, samples, scratch)
    passes = _passes(samples)
    inputs: dict[str, tuple[float | None, ...]] = {}
    keys: list[float] = []
    values: list[float] = []
    for layer in range(shape.layers):
        cache, meters = _run_layer(ranks, shape, layer, stream, passes, place, progress)
        for module, found in _by_module(meters, layer).items():
            inputs[module] = tuple(meter.largest for meter in found)
        keys.append(cache.key_meter.largest or 0.0)
        values.append(cache.value_meter.largest or 0.0)
        _refuse_strange(inputs, {f"keys of layer {layer}": keys[-1], f"values of layer {layer}": values[-1]})
    inputs[HEAD] = (_head_range(ranks, shape, stream),)
    _refuse_strange({HEAD: inputs[HEAD]}, {})
    return ActivationRanges(len(samples), len(stream), inputs, tuple(keys), tuple(values))


def _embedded(ranks: RankFiles, shape: DecoderShape, samples: Sequence[tuple[int, ...]], scratch: Path) -> Tensor:
    """The stream before the first layer, [tokens, hidden] float32, in a file of its own."""
    ids = torch.tensor([token for sample in samples for token in sample])
    if not len(ids):
        raise Failure("the calibration has no tokens", "give texts that are not empty")
    if int(ids.max()) >= shape.vocabulary:
        raise Failure(
            f"calibration token {int(ids.max())} has no row in the embedding ({shape.vocabulary} rows)",
            "give the tokenizer that the model was trained with",
        )
    size = len(ids) * shape.hidden_size
    stream = torch.from_file(str(scratch), shared=True, size=size, dtype=torch.float32).view(len(ids), -1)
    scratch.unlink()
    embedding = read_embedding(ranks)
    for begin in range(0, len(ids), _PASS_TOKENS):
        part = slice(begin, begin + _PASS_TOKENS)
        stream[part] = functional.embedding(ids[part], embedding).float()
    return stream


def _passes(samples: Sequence[tuple[int, ...]]) -> list[list[Run]]:
    """Samples that go through a layer together, in order, each in a slot of its own."""
    passes: list[list[Run]] = []
    tokens = 0
    for sample in samples:
        full = not passes or len(passes[-1]) == _PASS_SAMPLES or tokens + len(sample) > _PASS_TOKENS
        if full:
            passes.append([])
            tokens = 0
        passes[-1].append(Run(len(passes[-1]), 0, sample, len(sample)))
        tokens += len(sample)
    return passes


def _run_layer(
    ranks: RankFiles,
    shape: DecoderShape,
    layer: int,
    stream: Tensor,
    passes: list[list[Run]],
    device: torch.device,
    progress: Callable[[float, str], None],
) -> tuple[MeteredCache, dict[Site, Meter]]:
    """Send the stream through one layer, in place."""
    meters: dict[Site, Meter] = {}

    def linear(weight: Tensor, bias: Tensor | None = None, site: Site | None = None) -> Linear:
        held = PlainLinear(weight.to(device, torch.float32), None if bias is None else bias.to(device, torch.float32))
        return held if site is None else MeteredLinear(held, meters.setdefault(site, Meter()))

    weights = DecoderWeights(
        embedding=torch.empty(0),
        layers=(read_layer(ranks, shape, layer, linear, device, torch.float32),),
        final_norm=None,
        head=_no_head,
    )
    slots, longest = max(len(runs) for runs in passes), max(run.end for runs in passes for run in runs)
    alone = replace(shape, layers=1)
    decoder = Decoder(alone, weights, slots, longest, device)
    cache = decoder.cache = MeteredCache(alone, slots, longest, device)
    begin = 0
    with torch.inference_mode():
        for runs in passes:
            end = begin + sum(run.end for run in runs)
            stream[begin:end] = decoder.transform([run_window(run) for run in runs], stream[begin:end].to(device))
            begin = end
            progress((layer + end / len(stream)) / shape.layers, f"layer {layer}")
    return cache, meters


def _no_head(x: Tensor) -> Tensor:
    raise AssertionError("a single layer has no head")


def _by_module(meters: Mapping[Site, Meter], layer: int) -> dict[str, list[Meter]]:
    """Meters of each module, experts in order."""
    found: dict[str, list[Meter]] = {}
    for site, meter in sorted(meters.items(), key=lambda item: item[0].expert or 0):
        for module in site.modules:
            found.setdefault(f"transformer.layers.{layer}.{module}", []).append(meter)
    return found


def _head_range(ranks: RankFiles, shape: DecoderShape, stream: Tensor) -> float | None:
    """The largest magnitude behind the final norm: the head's input."""
    weight = ranks.whole(None, "transformer.ln_f.weight", None).float()
    meter = Meter()
    for begin in range(0, len(stream), _PASS_TOKENS):
        part = stream[begin : begin + _PASS_TOKENS]
        meter.see(functional.rms_norm(part, (shape.hidden_size,), weight, shape.norm_epsilon))
    return meter.largest


def _refuse_strange(inputs: Mapping[str, tuple[float | None, ...]], cached: Mapping[str, float]) -> None:
    everything = {f"the input of {module}": value for module, found in inputs.items() for value in found}
    for name, value in {**everything, **cached}.items():
        if value is not None and not value < float("inf"):
            raise Failure(f"{name} became {value} in calibration", "look at the weights", ExitCode.WORK_FAILED)
