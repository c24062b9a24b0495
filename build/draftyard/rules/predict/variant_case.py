"""From a recipe and the networks it names to what the forecast of one variant asks for."""

from dataclasses import dataclass, replace

from draftyard.nouns.blueprint import Variant
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import AcceptanceGuess, Device, Placement
from draftyard.nouns.recipe import KvCachePrecision, Recipe, Speculator
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.rules.predict.coefficients import LaneCoefficients
from draftyard.rules.predict.device_memory import EngineSizes, SpeculatorMemory
from draftyard.rules.predict.load_forecast import Drafting, Lengths, Situation
from draftyard.rules.predict.memory_parts import weight_bytes
from draftyard.rules.predict.shapes import shape_of_network, storage_of
from draftyard.rules.predict.step_terms import cache_bytes_per_token
from draftyard.rules.predict.variant_forecast import VariantCase

_CHAINS = (SpeculatorKind.NGRAM, SpeculatorKind.DRAFT_TARGET, SpeculatorKind.MTP)
_NO_PASSES = (SpeculatorKind.NGRAM, SpeculatorKind.LOOKAHEAD)
_LARGEST_LOAD = 256
_GRAPH_SIZES = 35  # batch sizes that TensorRT-LLM's PyTorch backend captures by default, up to 128


@dataclass(frozen=True, slots=True)
class Circumstances:
    """One variant and what its forecast depends on. `draft` is a model of its own, `heads` hang on the target."""

    variant: Variant
    recipe: Recipe
    target: Network
    speculator: Speculator | None
    draft: Network | None
    heads: SpeculatorSource | None
    device: Device
    lane: LaneCoefficients
    acceptance: AcceptanceGuess | None
    prompt_tokens: int
    answer_tokens: int


def variant_case(of: Circumstances) -> VariantCase:
    """What to forecast; nothing is read but the values given."""
    place = _place(of, of.target, of.variant.tp_size)
    drafting, memory = _drafting(of, place)
    limits, recipe = of.recipe.limits, of.recipe
    situation = Situation(
        place=place,
        drafting=drafting,
        lengths=Lengths(of.prompt_tokens, of.answer_tokens),
        lane=of.lane,
        rates=() if of.acceptance is None else of.acceptance.rates,
    )
    tokens = recipe.serving.kv_cache_tokens or limits.max_batch_size * limits.max_seq_len
    sizes = EngineSizes(
        max_batch=limits.max_batch_size,
        max_tokens_per_step=limits.max_num_tokens,
        cache_tokens=tokens,
        graphs=_GRAPH_SIZES if of.variant.lane is Lane.LLMAPI else 0,
    )
    return VariantCase(of.variant.name, situation, memory, sizes, _loads(of), of.acceptance, _notes(of))


def _place(of: Circumstances, network: Network, tp: int) -> Placement:
    precision, gpu = of.variant.precision, of.variant.gpu
    cache_8bit = precision is Precision.FP8 and of.recipe.quantisation.kv_cache is KvCachePrecision.FP8
    # On the CPU all ranks run in one process, one after the other.
    return Placement(
        shape_of_network(network), of.device, storage_of(precision, gpu, cache_8bit), 1 if gpu is Gpu.CPU else tp
    )


def _drafting(of: Circumstances, place: Placement) -> tuple[Drafting | None, SpeculatorMemory]:
    """How tokens are proposed, and what that keeps in memory."""
    speculator = of.speculator
    if speculator is None:
        return None, SpeculatorMemory()
    nodes, depth = speculator.max_draft_len, speculator.draft_depth
    kind = SpeculatorKind(speculator.kind)
    passes = 0 if kind in _NO_PASSES else 1 if kind is SpeculatorKind.MEDUSA else depth
    chain = kind in _CHAINS or nodes == depth
    if of.draft is not None:
        model = _place(of, of.draft, _draft_tp(speculator))
        size = sum(weight_bytes(model))
        return (
            Drafting(depth, nodes, passes, chain, model=model),
            SpeculatorMemory(size, cache_bytes_per_token(model), nodes),
        )
    if of.heads is None:
        return Drafting(depth, nodes, passes, chain), SpeculatorMemory(nodes=nodes)
    return _heads_drafting(of.heads, place, Drafting(depth, nodes, passes, chain))


def _draft_tp(speculator: Speculator) -> int:
    """The draft's own tensor parallel size."""
    return speculator.tp_size if speculator.kind is SpeculatorKind.DRAFT_TARGET else 1


def _heads_drafting(heads: SpeculatorSource, place: Placement, plain: Drafting) -> tuple[Drafting, SpeculatorMemory]:
    """Weights beside the target's: each pass reads them and a head, the speculator's own or the target's.

    Medusa's heads all run once, side by side.
    """
    network = heads.network
    item = place.storage.embedding_bytes
    own = sum(_elements(tensor.shape) for tensor in heads.tensors) * item / place.tp
    table = place.shape.vocabulary * place.shape.hidden * item / place.tp
    medusa = network.kind is SpeculatorKind.MEDUSA
    read = own if network.own_head else own + table * (network.heads if medusa else 1)
    layers = network.heads if medusa else (network.decoder.layers if network.decoder else 1)
    each = 0.0
    if network.decoder is not None:
        each = 2.0 * network.decoder.layers * network.decoder.kv_heads * network.decoder.head_size
        each *= place.storage.cache_bytes / place.tp
    return replace(plain, pass_bytes=read, layers=layers), SpeculatorMemory(own, each, plain.nodes)


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _loads(of: Circumstances) -> tuple[int, ...]:
    """The recipe's own concurrencies, and doublings up to the largest batch."""
    most = min(of.recipe.limits.max_batch_size, _LARGEST_LOAD)
    doubled = {1 << power for power in range(most.bit_length())} | {most}
    return tuple(sorted({*of.recipe.verify.concurrency, *doubled}))


def _notes(of: Circumstances) -> tuple[str, ...]:
    found = []
    if of.recipe.target.pp_size > 1:
        found.append("pipeline stages are predicted as if the devices of one stage held everything")
    if of.variant.lane is Lane.LLMAPI:
        found.append("time to first token is that of TensorRT engines: no like measurement of this lane is published")
    return tuple(found)
