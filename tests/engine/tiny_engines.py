"""Makes engine directories of random Llamas, cut into shards by this file's own few lines, and runs requests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationEvent, GenerationRequest

NO_SPECULATION: Mapping[str, object] = {"kind": "none", "max_draft_len": 0}
NGRAM: Mapping[str, object] = {"kind": "ngram", "max_draft_len": 4, "min_match": 1, "max_match": 3}
DRAFT_TARGET: Mapping[str, object] = {"kind": "draft_target", "max_draft_len": 4}
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def random_llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """Two small layers with grouped heads; weights wide enough that the arg max wanders over the vocabulary."""
    sizes: dict[str, object] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))
    return model.eval()


def rounded(model: LlamaForCausalLM, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model with its parameters rounded to a type; `model.to(dtype)` would round the rotary frequencies as well."""
    for value in model.parameters():
        value.data = value.data.to(dtype).float()
    return model


@dataclass(frozen=True)
class Sizes:
    """Limits of an engine in a test."""

    max_batch_size: int = 8
    max_input_len: int = 128
    max_seq_len: int = 400
    max_num_tokens: int = 256
    kv_cache_tokens: int = 8 * 404


def write_engine(
    directory: Path,
    model: LlamaForCausalLM,
    *,
    speculator: Mapping[str, object] = NO_SPECULATION,
    sizes: Sizes = Sizes(),
    dtype: torch.dtype = torch.float32,
    tp_size: int = 1,
    pp_size: int = 1,
    draft: LlamaForCausalLM | None = None,
    pretrained: Mapping[str, object] | None = None,
) -> Path:
    """An engine directory as the build makes it; `pretrained` overrides keys of the checkpoint's config."""
    directory.mkdir(parents=True)
    draft_len = int(str(speculator["max_draft_len"]))
    config = {
        "version": "1.2.1",
        "pretrained_config": {**_pretrained(model, dtype, tp_size, pp_size), **(pretrained or {})},
        "build_config": {
            "max_input_len": sizes.max_input_len,
            "max_seq_len": sizes.max_seq_len + draft_len,
            "max_batch_size": sizes.max_batch_size,
            "max_num_tokens": sizes.max_num_tokens,
            "max_beam_width": 1,
            "max_draft_len": draft_len,
            "speculative_decoding_mode": 2 if draft_len else 1,
            "kv_cache_type": "PAGED",
            "plugin_config": {},
        },
        "draftyard": {
            "lane": "reference",
            "speculator": dict(speculator),
            "kv_cache_tokens": sizes.kv_cache_tokens,
            "threads": 1,
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(tp_size * pp_size):
        tensors = _rank_tensors(model, tp_size, pp_size, rank)
        save_file({key: value.to(dtype).contiguous() for key, value in tensors.items()}, directory / _file(rank))
    if draft is not None:
        write_engine(directory / "draft", draft, sizes=sizes, dtype=dtype)
    return directory


def loaded(directory: Path) -> ReferenceEngine:
    """The engine of a directory, on one thread."""
    return load_engine(directory, open_tensor_file, threads=1)


def run(engine: ReferenceEngine, requests: Sequence[GenerationRequest]) -> dict[str, list[GenerationEvent]]:
    """Submit everything, step until nothing is left; events by request."""
    for request in requests:
        engine.submit(request)
    events: dict[str, list[GenerationEvent]] = {request.request_id: [] for request in requests}
    for _ in range(100_000):
        if not engine.has_work:
            return events
        for event in engine.step():
            events[event.request_id].append(event)
    raise AssertionError("the engine does not come to an end")


def tokens_of(events: Sequence[GenerationEvent]) -> list[int]:
    """Output tokens over all events of one request."""
    return [token for event in events for token in event.token_ids]


def random_prompts(
    count: int, vocabulary: int = 96, seed: int = 7, lengths: tuple[int, int] = (3, 40)
) -> list[list[int]]:
    """Prompts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for _ in range(count):
        length = int(torch.randint(lengths[0], lengths[1] + 1, (), generator=generator))
        prompts.append(torch.randint(0, vocabulary, (length,), generator=generator).tolist())
    return prompts


def transformers_greedy(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' own greedy generation gives."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return out[0, len(prompt) :].tolist()


def _file(rank: int) -> str:
    return f"rank{rank}.safetensors"


def _pretrained(model: LlamaForCausalLM, dtype: torch.dtype, tp_size: int, pp_size: int) -> dict[str, object]:
    config = model.config
    rotary = dict(config.rope_parameters)
    base = rotary.pop("rope_theta")
    scaling = None if rotary.get("rope_type", "default") == "default" else {"type": rotary["rope_type"], **rotary}
    return {
        "architecture": "LlamaForCausalLM",
        "dtype": DTYPES[dtype],
        "logits_dtype": "float32",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "norm_epsilon": config.rms_norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": base,
        "rotary_scaling": scaling,
        "attn_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "qk_layernorm": False,
        "tie_word_embeddings": config.tie_word_embeddings,
        "mapping": {"world_size": tp_size * pp_size, "tp_size": tp_size, "pp_size": pp_size},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
    }


def _rank_tensors(model: LlamaForCausalLM, tp_size: int, pp_size: int, rank: int) -> dict[str, torch.Tensor]:
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    stage, shard = divmod(rank, tp_size)
    layers = torch.tensor_split(torch.arange(model.config.num_hidden_layers), pp_size)[stage].tolist()
    tensors: dict[str, torch.Tensor] = {}
    if stage == 0:
        tensors["transformer.vocab_embedding.weight"] = state["model.embed_tokens.weight"]
    for local, layer in enumerate(layers):
        for name, value in _layer_tensors(model.config, state, layer, tp_size, shard).items():
            tensors[f"transformer.layers.{local}.{name}"] = value
    if stage == pp_size - 1:
        tensors["transformer.ln_f.weight"] = state["model.norm.weight"]
        if not (model.config.tie_word_embeddings and tp_size == pp_size == 1):
            head = state["lm_head.weight"]
            padded = torch.nn.functional.pad(head, (0, 0, 0, -len(head) % tp_size))
            tensors["lm_head.weight"] = padded.chunk(tp_size)[shard].clone()
    return tensors


def _layer_tensors(
    config: LlamaConfig, state: Mapping[str, torch.Tensor], layer: int, tp_size: int, shard: int
) -> dict[str, torch.Tensor]:
    def part(name: str) -> torch.Tensor:
        return state[f"model.layers.{layer}.{name}"]

    def key_value(name: str) -> torch.Tensor:
        repeated = max(1, tp_size // config.num_key_value_heads)
        heads = part(name).unflatten(0, (config.num_key_value_heads, -1)).repeat_interleave(repeated, 0)
        return heads.chunk(tp_size)[shard].flatten(0, 1)

    tensors: dict[str, torch.Tensor] = {
        "input_layernorm.weight": part("input_layernorm.weight"),
        "post_layernorm.weight": part("post_attention_layernorm.weight"),
        "attention.dense.weight": part("self_attn.o_proj.weight").chunk(tp_size, 1)[shard],
        "mlp.fc.weight": part("mlp.gate_proj.weight").chunk(tp_size)[shard],
        "mlp.gate.weight": part("mlp.up_proj.weight").chunk(tp_size)[shard],
        "mlp.proj.weight": part("mlp.down_proj.weight").chunk(tp_size, 1)[shard],
    }
    for kind in ("weight", "bias") if config.attention_bias else ("weight",):
        queries = part(f"self_attn.q_proj.{kind}").chunk(tp_size)[shard]
        pieces = [queries, key_value(f"self_attn.k_proj.{kind}"), key_value(f"self_attn.v_proj.{kind}")]
        tensors[f"attention.qkv.{kind}"] = torch.cat(pieces)
    if config.attention_bias:
        tensors["attention.dense.bias"] = part("self_attn.o_proj.bias")
    if config.mlp_bias:
        tensors["mlp.fc.bias"] = part("mlp.gate_proj.bias").chunk(tp_size)[shard]
        tensors["mlp.gate.bias"] = part("mlp.up_proj.bias").chunk(tp_size)[shard]
        tensors["mlp.proj.bias"] = part("mlp.down_proj.bias")
    return tensors
