"""Writes a Llama in Hugging Face layout as a float16 GGUF file, for the peers that read only that."""

from pathlib import Path

import gguf
import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys as GGUF's Llama wants them: both halves of each rotated pair side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_half_gguf(model_directory: Path, path: Path) -> Path:
    """A file with the weights in float16, norms in float32, and the tokenizer's vocabulary."""
    config, tokenizer = AutoConfig.from_pretrained(model_directory), AutoTokenizer.from_pretrained(model_directory)
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_tokenizer(writer, model_directory, tokenizer, config.vocab_size)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(*_tensor(name, value, config.num_attention_heads, config.num_key_value_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensor(name: str, value: torch.Tensor, heads: int, kv_heads: int) -> tuple[str, numpy.ndarray]:
    parts = name.split(".")
    fixed = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    if name in fixed:
        short = fixed[name]
    else:
        inner = ".".join(parts[3:-1])
        short = f"blk.{parts[2]}.{NAMES[inner]}"
        if inner in ("self_attn.q_proj", "self_attn.k_proj"):
            value = interleaved(value, heads if inner == "self_attn.q_proj" else kv_heads)
    return f"{short}.weight", value.half().numpy() if value.dim() > 1 else value.numpy()


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, tokenizer: AutoTokenizer, vocabulary: int) -> None:
    """Byte-level BPE; the peers are asked with token ids, so only counts and kinds matter."""
    special = set(tokenizer.all_special_ids)
    known = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    kinds = [gguf.TokenType.CONTROL if place in special else gguf.TokenType.NORMAL for place in range(vocabulary)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([known.get(place, f"<unused{place}>") for place in range(vocabulary)])
    writer.add_token_types(kinds)
    gguf.SpecialVocab(directory, load_merges=True).add_to_gguf(writer, quiet=True)
