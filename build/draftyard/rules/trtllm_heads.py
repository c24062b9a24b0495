"""File formats of checkpoints with heads: TensorRT-LLM's merged ones for Medusa and EAGLE, others for EAGLE-3 and MTP.

The merged ones follow `models/medusa` and `models/eagle` of TensorRT-LLM 1.2.1. The others are this project's, made of
the same pieces: TensorRT-LLM has no engine for them.
"""

from collections.abc import Mapping

from draftyard.nouns.digest import Json
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.speculator_source import SpeculatorNetwork
from draftyard.nouns.tensor import TensorType
from draftyard.rules.quantisation import HEADS_PATTERN, Expected, excluded_modules
from draftyard.rules.shards import padded_vocabulary
from draftyard.rules.trtllm import (
    TENSOR_TYPES,
    checkpoint_config,
    expected_tensors,
    integer_of,
    layer_shapes,
    object_of,
)

MEDUSA = "MedusaForCausalLM"
EAGLE = "EagleForCausalLM"
EAGLE3 = "Eagle3Drafter"
MTP = "MtpDrafter"

Shapes = dict[str, tuple[int, ...]]


def medusa_config(
    base: Mapping[str, Json], family: str, network: SpeculatorNetwork, heads: int, max_draft_len: int
) -> dict[str, Json]:
    """The `config.json` of a target with Medusa heads. `base` is the plain checkpoint's.

    `model_type` decides the class of the base inside the merged one (Qwen or Llama), which also reads `qwen_type`. The
    C++ runtime takes `max_draft_len` from here. Heads stay in 16 bit beside FP8 weights.
    """
    config: dict[str, Json] = {
        **base,
        "architecture": MEDUSA,
        "model_type": family,
        "num_medusa_heads": heads,
        "num_medusa_layers": network.head_layers,
        "max_draft_len": max_draft_len,
    }
    block = object_of(config, "quantization")
    if block.get("quant_algo") is not None:
        config["quantization"] = {**block, "exclude_modules": [*excluded_modules(base), HEADS_PATTERN]}
    return config


def eagle_config(
    base: Mapping[str, Json],
    network: SpeculatorNetwork,
    num_eagle_layers: int,
    max_non_leaves_per_layer: int,
    max_draft_len: int,
) -> dict[str, Json]:
    """The `config.json` of a target with an EAGLE network. `base` is the plain checkpoint's, of one pipeline stage.

    `eagle_net_config` is a whole config of its own. `draft_vocab_size` and `has_vocab_embedding` in it are this
    project's: a reduced draft vocabulary, which TensorRT-LLM does not know.
    """
    own = _drafter_config(network, str(base["dtype"]))
    own |= {"mapping": base["mapping"], "head_dim": own["head_size"]}
    if network.reduced:
        own |= {"draft_vocab_size": network.draft_vocab_size, "has_vocab_embedding": network.own_embedding}
    return {
        **base,
        "architecture": EAGLE,
        "num_eagle_layers": num_eagle_layers,
        "max_non_leaves_per_layer": max_non_leaves_per_layer,
        "max_draft_len": max_draft_len,
        "eagle_net_config": own,
    }


def drafter_config(network: SpeculatorNetwork, dtype: str, taps: tuple[int, ...] = ()) -> dict[str, Json]:
    """The `config.json` of an EAGLE-3 or MTP checkpoint, which lies beside the target's.

    `taps` are counts of target layers whose features an EAGLE-3 network reads. What is not stored is the target's.
    """
    config = _drafter_config(network, dtype)
    config |= {
        "target_hidden_size": network.target_hidden_size,
        "draft_vocab_size": network.draft_vocab_size,
        "has_lm_head": network.own_head,
        "has_vocab_embedding": network.own_embedding,
    }
    if taps:
        return {**config, "architecture": EAGLE3, "taps": list(taps)}
    return {**config, "architecture": MTP}


def promised_tensors(config: Mapping[str, Json], rank: int) -> Expected:
    """Name -> (element type, shape) of every tensor that the file of `rank` must hold, whatever the architecture.

    From the config alone, and written independently of the conversion tables; ValueError when a field is wrong.
    """
    architecture = config["architecture"]
    kind = TENSOR_TYPES[str(config["dtype"])]
    if architecture in (EAGLE3, MTP):
        return _typed(_eagle3_shapes(config) if architecture == EAGLE3 else _mtp_shapes(config), kind)
    promised = expected_tensors(config, rank)
    tp_size = integer_of(object_of(config, "mapping"), "tp_size")
    if architecture == MEDUSA:
        promised |= _typed(_medusa_shapes(config, tp_size), kind)
    if architecture == EAGLE:
        promised |= _typed(_eagle_shapes(config, tp_size), kind)
    return promised


def _drafter_config(network: SpeculatorNetwork, dtype: str) -> dict[str, Json]:
    decoder = _decoder(network)
    precision = {"float32": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}[dtype]
    return checkpoint_config(decoder, precision, 1, 1)


def _decoder(network: SpeculatorNetwork) -> Network:
    if network.decoder is None:
        raise ValueError(f"{network.kind} has no decoder layers")
    return network.decoder


def _typed(shapes: Shapes, kind: TensorType) -> Expected:
    return {name: (TensorType.I64 if name.endswith("d2t") else kind, shape) for name, shape in shapes.items()}


def _medusa_shapes(config: Mapping[str, Json], tp_size: int) -> Shapes:
    """The same on every rank, also on those of later pipeline stages."""
    hidden_size, vocabulary = integer_of(config, "hidden_size"), integer_of(config, "vocab_size")
    shapes: Shapes = {}
    for head in range(integer_of(config, "num_medusa_heads")):
        prefix = f"medusa_heads.{head}"
        for block in range(integer_of(config, "num_medusa_layers")):
            shapes[f"{prefix}.medusa_layers.{block}.linear.weight"] = (hidden_size // tp_size, hidden_size)
            shapes[f"{prefix}.medusa_layers.{block}.linear.bias"] = (hidden_size // tp_size,)
        shapes[f"{prefix}.lm_head.weight"] = (padded_vocabulary(vocabulary, tp_size) // tp_size, hidden_size)
    return shapes


def _eagle_shapes(config: Mapping[str, Json], tp_size: int) -> Shapes:
    """One copy of the network for each drafting step; one in all when its vocabulary is reduced."""
    own = object_of(config, "eagle_net_config")
    hidden_size, vocabulary = integer_of(own, "hidden_size"), integer_of(own, "vocab_size")
    reduced = "draft_vocab_size" in own
    rows = integer_of(own, "draft_vocab_size") if reduced else vocabulary
    one: Shapes = {
        "drafter.fc.weight": (hidden_size // tp_size, 2 * hidden_size),
        "drafter.fc.bias": (hidden_size // tp_size,),
        "lm_head.weight": (padded_vocabulary(rows, tp_size) // tp_size, hidden_size),
    }
    if own.get("has_vocab_embedding", True):
        one["drafter.vocab_embedding.weight"] = (vocabulary, hidden_size)
    if reduced:
        one["d2t"] = (rows,)
    for layer in range(integer_of(own, "num_hidden_layers")):
        for name, shape in layer_shapes(own, tp_size).items():
            if layer or name != "input_layernorm.weight":
                one[f"drafter.layers.{layer}.{name}"] = shape
    copies = 1 if reduced else integer_of(config, "num_eagle_layers")
    return {f"eagle_nets.{copy}.{name}": shape for copy in range(copies) for name, shape in one.items()}


def _eagle3_shapes(config: Mapping[str, Json]) -> Shapes:
    hidden_size, target_size = integer_of(config, "hidden_size"), integer_of(config, "target_hidden_size")
    shapes: Shapes = {"eagle3.fc.weight": (hidden_size, 3 * target_size), "eagle3.ln_f.weight": (hidden_size,)}
    for name, shape in layer_shapes(config, 1).items():
        shapes[f"eagle3.layers.0.{name}"] = shape
    rows = shapes["eagle3.layers.0.attention.qkv.weight"][0]
    shapes["eagle3.layers.0.attention.qkv.weight"] = (rows, 2 * hidden_size)
    shapes["eagle3.layers.0.hidden_norm.weight"] = (hidden_size,)
    draft_rows, vocabulary = integer_of(config, "draft_vocab_size"), integer_of(config, "vocab_size")
    if draft_rows != vocabulary:
        shapes["eagle3.d2t"] = (draft_rows,)
    return shapes | _outer_shapes("eagle3", config, draft_rows)


def _mtp_shapes(config: Mapping[str, Json]) -> Shapes:
    hidden_size = integer_of(config, "hidden_size")
    shapes: Shapes = {f"mtp.{name}.weight": (hidden_size,) for name in ("enorm", "hnorm", "ln_f")}
    shapes["mtp.eh_proj.weight"] = (hidden_size, 2 * hidden_size)
    for name, shape in layer_shapes(config, 1).items():
        shapes[f"mtp.layers.0.{name}"] = shape
    return shapes | _outer_shapes("mtp", config, integer_of(config, "vocab_size"))


def _outer_shapes(prefix: str, config: Mapping[str, Json], rows: int) -> Shapes:
    """Head and embedding, where the network brings its own."""
    hidden_size, shapes = integer_of(config, "hidden_size"), Shapes()
    if config.get("has_lm_head"):
        shapes[f"{prefix}.lm_head.weight"] = (rows, hidden_size)
    if config.get("has_vocab_embedding"):
        shapes[f"{prefix}.vocab_embedding.weight"] = (integer_of(config, "vocab_size"), hidden_size)
    return shapes
