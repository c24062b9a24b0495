"""Run as a program in a process of its own: random models, and what nvidia-modelopt makes of each of them.

Argument: an empty directory, which gets for each family `model/` (Hugging Face layout), `plain/` and `fp8/`
(TensorRT-LLM checkpoints, FP8 with an FP8 KV cache) and `ranges.json` (what its calibrators measured); for the first
also `fp8-tp2/` and `unified/` (Hugging Face layout in FP8).
"""

import copy
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

# Its searches over architectures need these; quantising does not, and they are large.
ABSENT = ("scipy", "scipy.interpolate", "scipy.optimize", "scipy.spatial", "scipy.stats", "pulp")


class _Absent(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


for absent in ABSENT:
    module = _Absent(absent)
    module.__spec__, module.__path__ = ModuleSpec(absent, None), []
    sys.modules[absent] = module

import modelopt.torch.quantization as mtq  # noqa: E402
import torch  # noqa: E402
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint  # noqa: E402
from modelopt_samples import SAMPLES  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES), "llama"),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES), "llama"),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES), "qwen"),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16), "qwen"),
}


def make(root: Path, family: str) -> None:
    kind, config, decoder = MODELS[family]
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config).eval()
    for name, value in model.named_parameters():
        value.data.normal_(0, 0.2) if value.ndim > 1 or "bias" in name else value.data.uniform_(0.5, 1.5)
        if family == "llama":
            value.data = value.data.half().float()  # its unified export rounds to float16 before it quantises
    model.config.architectures = [kind.__name__]
    model.save_pretrained(root / "model")

    def export(source: PreTrainedModel, name: str, tp_size: int = 1) -> None:
        export_tensorrt_llm_checkpoint(
            source, decoder, torch.float16, export_dir=root / name, inference_tensor_parallel=tp_size
        )

    export(model, "plain")
    wishes = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    wishes["quant_cfg"].extend(mtq.FP8_KV_CFG["quant_cfg"])
    quantised = mtq.quantize(model, wishes, lambda one: [one(torch.tensor([list(sample)])) for sample in SAMPLES])
    ranges = {
        name.removesuffix("._amax"): value.item() for name, value in quantised.named_buffers() if name.endswith("_amax")
    }
    (root / "ranges.json").write_text(json.dumps(ranges))
    export(quantised, "fp8")
    if family == "llama":
        export(quantised, "fp8-tp2", 2)
        export_hf_checkpoint(quantised, dtype=torch.float16, export_dir=root / "unified")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in MODELS:
        (Path(sys.argv[1]) / chosen).mkdir()
        with torch.no_grad():
            make(Path(sys.argv[1]) / chosen, chosen)
