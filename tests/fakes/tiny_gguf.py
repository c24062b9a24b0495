"""Writes a GGUF file of a Llama with a byte-level vocabulary, small enough to make in a moment, and a wheel of it."""

import zipfile
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 64, 4, 2, 16, 96, 2
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "Ġ w", "Ġ Ġ")
TOKENS = (*CONTROLS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>\n{% endfor %}"

_NAMES = {
    "self_attn.q_proj": ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
    "mlp.gate_proj": ("ffn_gate", (INNER, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (INNER, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, INNER)),
    "input_layernorm": ("attn_norm", (HIDDEN,)),
    "post_attention_layernorm": ("ffn_norm", (HIDDEN,)),
}


def weights(seed: int = 5) -> dict[str, NDArray[np.float32]]:
    """The model's weights under Hugging Face names, in Hugging Face order."""
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(TOKENS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, (_, shape) in _NAMES.items()}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def paired(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Row order of GGUF: row 2i of a head is row i of its first rotary half, row 2i + 1 row i of the second."""
    made = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for place in range(size // 2):
            made[head * size + 2 * place] = rows[head * size + place]
            made[head * size + 2 * place + 1] = rows[head * size + size // 2 + place]
    return made


def write_gguf(path: Path, *, pre_tokenizer: str = "smollm", architecture: str = "llama") -> Path:
    """Write the model; matrices of the layers are stored as Q8_0, all else as float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3 if token in CONTROLS else 1 for token in TOKENS])
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    made = weights()
    writer.add_tensor("token_embd.weight", made["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", made["model.norm.weight"])
    for layer in range(LAYERS):
        for name, (stored, _) in _NAMES.items():
            values = made[f"model.layers.{layer}.{name}.weight"]
            values = paired(values, HEADS) if stored == "attn_q" else values
            values = paired(values, KV_HEADS) if stored == "attn_k" else values
            kind = gguf.GGMLQuantizationType.Q8_0
            if values.ndim == 1:
                writer.add_tensor(f"blk.{layer}.{stored}.weight", values)
            else:
                writer.add_tensor(f"blk.{layer}.{stored}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(path: Path, member: str, content: bytes) -> Path:
    """A zip file with one member."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path
