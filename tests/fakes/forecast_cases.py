"""Variants of well-known models on GPUs, made of values alone: what a drawn recipe would hand to the predictor."""

from functools import cache
from pathlib import Path

from draftyard.doors.prediction_files import read_coefficients
from draftyard.nouns.blueprint import Variant
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import MixtureOfExperts, Network, Precision
from draftyard.nouns.prediction import AcceptanceGuess
from draftyard.nouns.recipe import Recipe
from draftyard.rules.predict.acceptance_guess import assumed_acceptance, given_acceptance
from draftyard.rules.predict.coefficients import LaneCoefficients, lane_coefficients
from draftyard.rules.predict.devices import device_of
from draftyard.rules.predict.variant_case import Circumstances

ROOT = Path(__file__).parents[2]


def network(family: str, layers: int, hidden: int, rows: int, heads: int, kv_heads: int, vocabulary: int) -> Network:
    return Network(
        family=family,
        architecture="LlamaForCausalLM",
        hidden_size=hidden,
        intermediate_size=rows,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=128,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        norm_epsilon=1e-5,
        rotary_base=500000.0,
        hidden_act="silu",
        tied_head=False,
    )


LLAMA_70B = network("llama", 80, 8192, 28672, 64, 8, 128256)
LLAMA_8B = network("llama", 32, 4096, 14336, 32, 8, 128256)
LLAMA_1B = network("llama", 16, 2048, 8192, 16, 4, 128256)
QWEN_32B = network("qwen3", 64, 5120, 25600, 64, 8, 151936)
MISTRAL_7B = network("mistral", 32, 4096, 14336, 32, 8, 32000)


def mixtral() -> Network:
    from dataclasses import replace

    experts = MixtureOfExperts(experts=8, experts_per_token=2, intermediate_size=14336, normalise=True)
    return replace(MISTRAL_7B, family="mixtral", experts=experts)


@cache
def lane(name: Lane) -> LaneCoefficients:
    return lane_coefficients(read_coefficients(), name.value)


def recipe(gpu: Gpu, precision: Precision, tp: int, speculator: str = "", limits: str = "") -> Recipe:
    import yaml

    text = f"""
version: 1
name: appliance
target: {{path: target, tp_size: {tp}}}
speculators: [{speculator}]
lanes: [tensorrt]
gpus: [{gpu}]
precisions: [{precision}]
limits: {{{limits or "max_batch_size: 64, max_input_len: 2048, max_seq_len: 4096, max_num_tokens: 8192"}}}
verify: {{prompts: prompts, concurrency: [1, 8, 32], max_tokens: 512}}
"""
    return Recipe.model_validate(yaml.safe_load(text))


def circumstances(
    target: Network,
    gpu: Gpu,
    precision: Precision,
    tp: int,
    *,
    draft: Network | None = None,
    draft_length: int = 4,
    acceptance: float | None = None,
    kind: SpeculatorKind = SpeculatorKind.NONE,
    lane_name: Lane = Lane.TENSORRT,
    limits: str = "",
    lengths: tuple[int, int] = (1024, 512),
) -> Circumstances:
    words = ""
    if kind is SpeculatorKind.DRAFT_TARGET:
        words = f"{{kind: draft_target, path: draft, max_draft_len: {draft_length}}}"
    elif kind is not SpeculatorKind.NONE:
        words = f"{{kind: {kind}, max_draft_len: {draft_length}}}"
    asked = recipe(gpu, precision, tp, words, limits)
    guess: AcceptanceGuess | None = None
    if words:
        guess = assumed_acceptance(kind, draft_length)
        if acceptance is not None:
            guess = given_acceptance(acceptance, draft_length)
    return Circumstances(
        variant=Variant(f"{kind}-{precision}-{gpu}-tp{tp}", lane_name, kind, precision, gpu, tp, ("key",)),
        recipe=asked,
        target=target,
        speculator=asked.speculators[0] if words else None,
        draft=draft,
        heads=None,
        device=device_of(gpu),
        lane=lane(lane_name),
        acceptance=guess,
        prompt_tokens=lengths[0],
        answer_tokens=lengths[1],
    )
