"""Reads a Llama model out of a GGUF file: its numbers, its vocabulary and its weights under Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderTensor, dequantize
from numpy.typing import NDArray

from draftyard.nouns.errors import Failure

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A byte-level BPE vocabulary as GGUF keeps it (`tokenizer.ggml.*`); token types: 1 ordinary, 3 control."""

    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[str, ...]
    pre_tokenizer: str
    bos_token_id: int
    eos_token_id: int
    unknown_token_id: int
    padding_token_id: int
    chat_template: str


@dataclass(frozen=True, slots=True)
class GgufLlama:
    """The numbers of a Llama model (`llama.*` keys); sizes in elements."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    vocab_size: int
    tied_embeddings: bool
    vocabulary: GgufVocabulary


class GgufSource:
    """An open GGUF file of architecture `llama`; weights are mapped, so opening costs no memory to speak of."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises Failure when it is no readable GGUF file or holds another architecture."""
        try:
            self._reader = GGUFReader(path)
        except (ValueError, OSError, IndexError) as error:
            raise Failure(f"{path.name} is no readable GGUF file: {error}", "fetch the file again") from error
        architecture = self._text("general.architecture")
        if architecture != "llama":
            raise Failure(f"{path.name} holds architecture {architecture!r}", "give a GGUF file of architecture llama")
        self.model = self._read_model()

    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(Hugging Face name, shape) of every tensor, in name order."""
        return tuple(sorted((_hugging_face_name(tensor.name), _shape(tensor)) for tensor in self._reader.tensors))

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield (Hugging Face name, float32 values), one tensor at a time, in name order.

        Query and key rows come back in Hugging Face order: the GGUF converter interleaves the two rotary halves of
        each head (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute), and this undoes it.
        """
        named = {_hugging_face_name(tensor.name): tensor for tensor in self._reader.tensors}
        for name, tensor in sorted(named.items(), key=lambda item: item[0]):
            values = _dequantised(tensor)
            if name.endswith("q_proj.weight"):
                values = unpermuted(values, self.model.heads)
            elif name.endswith("k_proj.weight"):
                values = unpermuted(values, self.model.kv_heads)
            yield name, values

    def _read_model(self) -> GgufLlama:
        heads = self._integer("llama.attention.head_count")
        hidden_size = self._integer("llama.embedding_length")
        return GgufLlama(
            layers=self._integer("llama.block_count"),
            hidden_size=hidden_size,
            intermediate_size=self._integer("llama.feed_forward_length"),
            heads=heads,
            kv_heads=self._integer("llama.attention.head_count_kv"),
            head_dim=self._integer("llama.rope.dimension_count"),
            max_positions=self._integer("llama.context_length"),
            rope_theta=self._real("llama.rope.freq_base"),
            rms_norm_eps=self._real("llama.attention.layer_norm_rms_epsilon"),
            vocab_size=self._integer("llama.vocab_size"),
            tied_embeddings=all(tensor.name != "output.weight" for tensor in self._reader.tensors),
            vocabulary=self._read_vocabulary(),
        )

    def _read_vocabulary(self) -> GgufVocabulary:
        return GgufVocabulary(
            tokens=self._texts("tokenizer.ggml.tokens"),
            token_types=self._integers("tokenizer.ggml.token_type"),
            merges=self._texts("tokenizer.ggml.merges"),
            pre_tokenizer=self._text("tokenizer.ggml.pre"),
            bos_token_id=self._integer("tokenizer.ggml.bos_token_id"),
            eos_token_id=self._integer("tokenizer.ggml.eos_token_id"),
            unknown_token_id=self._integer("tokenizer.ggml.unknown_token_id"),
            padding_token_id=self._integer("tokenizer.ggml.padding_token_id"),
            chat_template=self._text("tokenizer.chat_template"),
        )

    def _value(self, key: str) -> object:
        field = self._reader.get_field(key)
        if field is None:
            raise Failure(f"the GGUF file has no {key}", "give a GGUF file that carries its model and tokenizer keys")
        if field.types[0] is GGUFValueType.ARRAY and not field.data:
            return []
        value: object = field.contents()
        return value

    def _text(self, key: str) -> str:
        return str(self._value(key))

    def _integer(self, key: str) -> int:
        value = self._value(key)
        if not isinstance(value, int):
            raise Failure(f"{key} is {value!r}, not a whole number", "give another GGUF file")
        return value

    def _real(self, key: str) -> float:
        value = self._value(key)
        if not isinstance(value, float):
            raise Failure(f"{key} is {value!r}, not a real number", "give another GGUF file")
        return float(np.format_float_positional(np.float32(value), unique=True))

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._value(key)
        return tuple(str(entry) for entry in value) if isinstance(value, list) else ()

    def _integers(self, key: str) -> tuple[int, ...]:
        value = self._value(key)
        return tuple(int(entry) for entry in value) if isinstance(value, list) else ()


def unpermuted(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of a query or key matrix [heads * head_dim, hidden] back from pairs into two rotary halves."""
    outputs, inputs = rows.shape
    return rows.reshape(heads, outputs // heads // 2, 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def _hugging_face_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES and parts[3] == "weight":
        return f"model.layers.{int(parts[1])}.{_BLOCK_NAMES[parts[2]]}.weight"
    raise Failure(f"the GGUF tensor {name} has no place in a Llama model", "give a plain Llama GGUF file")


def _dequantised(tensor: ReaderTensor) -> NDArray[np.float32]:
    """Values as float32."""
    return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(_shape(tensor))


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """Row-major shape; GGUF lists its axes fastest first."""
    return tuple(int(size) for size in reversed(tensor.shape.tolist()))
