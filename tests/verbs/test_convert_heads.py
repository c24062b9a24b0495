"""Checkpoints with heads: the base is the plain one to the byte, every head tensor lies where its engine looks."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from tests.fakes.fp8_checkpoints import CALIBRATION_KEY, WISHES, fp8_checkpoint, fp8_step
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.tiny_speculators import (
    Weights,
    eagle3_weights,
    eagle_weights,
    layer_config,
    medusa_weights,
    mtp_weights,
    random_arrays,
    vocabulary_map,
    write_heads_recipe,
    write_speculator,
)

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import EXCLUDED_MODULES
from draftyard.rules.trtllm_heads import medusa_config
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.drawing import draw_recipe
from draftyard.verbs.inspect import inspect_speculator
from draftyard.verbs.making import Workplace

MEDUSA = "{kind: medusa, path: heads, choices: [[0], [0, 0]]}"
EAGLE = "{kind: eagle, path: heads, num_eagle_layers: 2, max_draft_len: 4}"
EAGLE3 = "{kind: eagle3, path: heads, depth: 3}"
MTP = "{kind: mtp, path: heads, max_draft_len: 2}"


@dataclass(frozen=True)
class Made:
    """One checkpoint: its config, the tensors of each rank, what was noted."""

    config: dict[str, object]
    ranks: list[Weights]
    notes: tuple[str, ...]

    def one(self, name: str, dim: int | None = 0) -> np.ndarray:
        """The tensor of all ranks: joined along `dim`, or (None) the same in each."""
        pieces = [rank[name] for rank in self.ranks if name in rank]
        if dim is None:
            assert all(np.array_equal(piece, pieces[0]) for piece in pieces)
            return pieces[0]
        return np.concatenate(pieces, axis=dim)


def no_input(key: str) -> Path:
    raise KeyError(key)


def make(step: Step, staging: Path) -> Made:
    staging.mkdir(parents=True)
    sources = tuple(Path(source) for source in step.sources)
    notes = make_checkpoint(step, Workplace(staging, no_input, sources, lambda share, words: None))
    files = sorted(staging.glob("rank*.safetensors"))
    return Made(json.loads((staging / "config.json").read_text()), [load_file(file) for file in files], notes)


def checkpoints(root: Path, recipe: Path) -> dict[str, Made]:
    """Everything a recipe asks for, by the role of its step."""
    blueprint = draw_recipe(recipe, None).blueprint
    steps = [step for step in blueprint.steps if step.kind is StepKind.CHECKPOINT]
    return {str(step.parameters["role"]): make(step, root / "made" / str(index)) for index, step in enumerate(steps)}


def target(root: Path, **changes: object) -> Weights:
    """Write the target; returns its weights."""
    config = config_of(**changes)  # type: ignore[arg-type]
    weights = random_weights(config)
    write_model(root / "target", config, weights)
    return weights


def matching_eagle(weights: Weights, **options: bool) -> Weights:
    """An EAGLE network that carries the target's own embedding, as the authors' do."""
    made = eagle_weights(**options)  # type: ignore[arg-type]
    if "embed_tokens.weight" in made:
        made["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    return made


# --- the base -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        {"model_type": "llama", "tie_word_embeddings": True},
        {"model_type": "qwen2"},
        {"model_type": "qwen3"},
        {"model_type": "mistral"},
    ],
    ids=["biases", "tied", "qwen2", "qwen3", "mistral"],
)
@pytest.mark.parametrize(
    ("kind", "tp_size", "pp_size"),
    [("medusa", 1, 1), ("medusa", 2, 1), ("medusa", 2, 2), ("eagle", 1, 1), ("eagle", 2, 1)],
)
def test_without_its_heads_a_checkpoint_is_the_plain_one(
    tmp_path: Path, changes: dict[str, object], kind: str, tp_size: int, pp_size: int
) -> None:
    """Users had to patch the route for a base with biases (NVIDIA/TensorRT-LLM#1449): here it is the same code."""
    weights = target(tmp_path, **changes)
    made = medusa_weights(3) if kind == "medusa" else matching_eagle(weights)
    write_speculator(tmp_path / "heads", made, layer_config())
    recipe = write_heads_recipe(tmp_path, MEDUSA if kind == "medusa" else EAGLE, tp_size=tp_size, pp_size=pp_size)
    found = checkpoints(tmp_path, recipe)
    plain, merged = found["target"], found[kind]
    for own, other in zip(plain.ranks, merged.ranks, strict=True):
        base = {name: value for name, value in other.items() if not name.startswith(("medusa_heads.", "eagle_nets."))}
        assert set(base) == set(own)
        for name, value in own.items():
            assert value.tobytes() == base[name].tobytes(), name
        assert len(other) > len(own)
    for key, value in plain.config.items():
        if key != "architecture":
            assert merged.config[key] == value, key


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2"])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_bases_of_the_engine_flow_are_plain_too(tmp_path: Path, model_type: str, tp_size: int) -> None:
    """A mixture of experts and Qwen were patched in by hand (NVIDIA/TensorRT-LLM#1798, #2678)."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    target(tmp_path, model_type=model_type, **sizes)
    write_speculator(tmp_path / "heads", medusa_weights(2, hidden=128, vocabulary=50))
    recipe = write_heads_recipe(tmp_path, MEDUSA, tp_size=tp_size, precision="fp16")
    recipe.write_text(recipe.read_text().replace("[reference]", "[tensorrt]").replace("[cpu]", "[h100_sxm]"))
    found = checkpoints(tmp_path, recipe)
    assert found["medusa"].config["model_type"] == model_type
    for own, other in zip(found["target"].ranks, found["medusa"].ranks, strict=True):
        assert {name: other[name].tobytes() for name in own} == {name: own[name].tobytes() for name in own}
        assert len(other) == len(own) + 6


# --- Medusa -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_projection", [True, False])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (2, 3)])
def test_medusa_tensors_and_settings(tmp_path: Path, own_projection: bool, tp_size: int, pp_size: int) -> None:
    weights = target(tmp_path)
    heads = medusa_weights(3, 2, vocabulary=50 if own_projection else None)
    write_speculator(tmp_path / "heads", heads)
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, MEDUSA, tp_size=tp_size, pp_size=pp_size))["medusa"]
    assert {
        key: made.config[key]
        for key in ("architecture", "model_type", "num_medusa_heads", "num_medusa_layers", "max_draft_len")
    } == {
        "architecture": "MedusaForCausalLM",
        "model_type": "llama",
        "num_medusa_heads": 3,
        "num_medusa_layers": 2,
        "max_draft_len": 2,
    }
    for stage in range(pp_size):
        ranks = Made(made.config, made.ranks[stage * tp_size : (stage + 1) * tp_size], made.notes)
        for head in range(3):
            prefix = f"medusa_heads.{head}"
            for block in range(2):
                for name in ("weight", "bias"):
                    stored = heads[f"{head}.{block}.linear.{name}"]
                    assert np.array_equal(ranks.one(f"{prefix}.medusa_layers.{block}.linear.{name}"), stored)
            projection = heads[f"{head}.2.weight"] if own_projection else weights["lm_head.weight"]
            assert np.array_equal(ranks.one(f"{prefix}.lm_head.weight"), projection)
    copied = "medusa: the target's head is copied for each of 3 heads"
    assert (copied in made.notes) == (not own_projection)
    size_bytes = sum(value.nbytes for name, value in made.ranks[0].items() if name.startswith("medusa_heads."))
    assert f"the heads take {size_bytes} bytes of each rank's file" in made.notes


def test_a_tied_target_gives_its_embedding_as_head(tmp_path: Path) -> None:
    weights = target(tmp_path, tie_word_embeddings=True)
    write_speculator(tmp_path / "heads", medusa_weights(2))
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, MEDUSA))["medusa"]
    assert np.array_equal(made.one("medusa_heads.1.lm_head.weight"), weights["model.embed_tokens.weight"])
    assert "lm_head.weight" not in made.ranks[0]


def test_fewer_heads_than_are_stored_are_the_first_ones(tmp_path: Path) -> None:
    """The published set has five, the settings say two, and four are wanted (NVIDIA/TensorRT-LLM#1795)."""
    target(tmp_path)
    write_speculator(tmp_path / "heads", medusa_weights(5), {"medusa_num_heads": 2})
    asked = "{kind: medusa, path: heads, heads: 4, choices: [[0], [0, 0]]}"
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, asked))["medusa"]
    names = {name.split(".")[1] for name in made.ranks[0] if name.startswith("medusa_heads.")}
    assert (names, made.config["num_medusa_heads"]) == ({"0", "1", "2", "3"}, 4)


def test_qwen_heads_name_the_class_of_their_base(tmp_path: Path) -> None:
    """The merged class reads `qwen_type`; without it later versions fail (NVIDIA/TensorRT-LLM#2678)."""
    target(tmp_path, model_type="qwen2")
    write_speculator(tmp_path / "heads", medusa_weights(2))
    config = checkpoints(tmp_path, write_heads_recipe(tmp_path, MEDUSA))["medusa"].config
    assert (config["model_type"], config["qwen_type"]) == ("qwen2", "qwen2")


@pytest.mark.parametrize(("precision", "kind"), [("fp16", np.float16), ("fp32", np.float32)])
def test_heads_have_the_type_of_the_base(tmp_path: Path, precision: str, kind: type) -> None:
    """Half heads beside another base load into parameters of the wrong type, so all are cast alike."""
    target(tmp_path)
    write_speculator(tmp_path / "heads", {name: value.astype(np.float16) for name, value in medusa_weights(2).items()})
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, MEDUSA, precision=precision))["medusa"]
    assert {value.dtype.type for value in made.ranks[0].values()} == {kind}


@pytest.mark.parametrize("excluded", [EXCLUDED_MODULES, None, ()], ids=["listed", "left out", "nothing"])
@pytest.mark.parametrize("own_projection", [True, False])
def test_heads_stay_in_sixteen_bit_beside_an_fp8_base(
    tmp_path: Path, excluded: tuple[str, ...] | None, own_projection: bool
) -> None:
    """Quantised heads without scales crash the builder (NVIDIA/TensorRT-LLM#1845): their pattern is always written."""
    weights = target(tmp_path)
    directory = write_speculator(tmp_path / "heads", medusa_weights(2, vocabulary=50 if own_projection else None))
    wishes = WISHES.model_copy(update={"exclude_modules": excluded})
    plain = fp8_step(tmp_path / "target", wishes=wishes)
    heads = inspect_speculator(directory)
    base = plain.parameters["config"]
    assert isinstance(base, dict)
    config = medusa_config(base, "llama", heads.network, 2, 2)
    fp8_checkpoint(tmp_path / "target", tmp_path / "plain", wishes=wishes)
    step = Step(
        StepKind.CHECKPOINT,
        "c",
        {**plain.parameters, "role": "medusa", "config": config},
        (plain.inputs[0], heads.digest, plain.inputs[1]),
        {},
        (str(tmp_path / "target"), str(directory)),
    )
    staging = tmp_path / "merged"
    staging.mkdir()
    places = {CALIBRATION_KEY: tmp_path / "plain-ranges"}
    sources = tuple(Path(source) for source in step.sources)
    make_checkpoint(step, Workplace(staging, places.__getitem__, sources, lambda share, words: None))
    merged = load_torch_file(staging / "rank0.safetensors")
    written = json.loads((staging / "config.json").read_text())
    assert written["quantization"]["exclude_modules"][-1] == "*medusa_heads*"
    head = {name: tensor for name, tensor in merged.items() if name.startswith("medusa_heads.")}
    assert {tensor.dtype for tensor in head.values()} == {torch.float16}
    assert len(head) == 6
    expected = medusa_weights(2, vocabulary=50)["1.1.weight"] if own_projection else weights["lm_head.weight"]
    assert np.array_equal(head["medusa_heads.1.lm_head.weight"].numpy(), expected.astype(np.float16))
    for name, tensor in load_torch_file(tmp_path / "plain" / "rank0.safetensors").items():
        assert torch.equal(tensor.view(torch.uint8), merged[name].view(torch.uint8)), name


# --- EAGLE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp_size", [1, 2])
def test_eagle_tensors_and_settings(tmp_path: Path, tp_size: int) -> None:
    weights = target(tmp_path)
    net = matching_eagle(weights)
    write_speculator(tmp_path / "heads", net, layer_config())
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE, tp_size=tp_size))["eagle"]
    assert (made.config["architecture"], made.config["num_eagle_layers"]) == ("EagleForCausalLM", 2)
    assert (made.config["max_non_leaves_per_layer"], made.config["max_draft_len"]) == (10, 4)
    own = made.config["eagle_net_config"]
    assert isinstance(own, dict)
    assert (own["architecture"], own["num_hidden_layers"], own["intermediate_size"]) == ("LlamaForCausalLM", 1, 40)
    assert (own["head_dim"], own["head_size"], own["vocab_size"]) == (8, 8, 50)
    assert own["mapping"] == {"world_size": tp_size, "tp_size": tp_size, "pp_size": 1}
    for copy in range(2):
        prefix = f"eagle_nets.{copy}"
        drafter = f"{prefix}.drafter"
        assert np.array_equal(made.one(f"{drafter}.fc.weight"), net["fc.weight"])
        assert np.array_equal(made.one(f"{drafter}.fc.bias"), net["fc.bias"])
        assert np.array_equal(made.one(f"{drafter}.vocab_embedding.weight", None), net["embed_tokens.weight"])
        assert np.array_equal(made.one(f"{prefix}.lm_head.weight"), weights["lm_head.weight"])
        layer = f"{drafter}.layers.0"
        assert np.array_equal(made.one(f"{layer}.mlp.fc.weight"), net["layers.0.mlp.gate_proj.weight"])
        assert np.array_equal(made.one(f"{layer}.mlp.gate.weight"), net["layers.0.mlp.up_proj.weight"])
        assert np.array_equal(made.one(f"{layer}.mlp.proj.weight", 1), net["layers.0.mlp.down_proj.weight"])
        assert np.array_equal(made.one(f"{layer}.attention.dense.weight", 1), net["layers.0.self_attn.o_proj.weight"])
        assert f"{layer}.input_layernorm.weight" not in made.ranks[0]
        for rank, tensors in enumerate(made.ranks):
            parts = [
                np.array_split(net[f"layers.0.self_attn.{name}_proj.weight"], tp_size)[rank] for name in ("q", "k", "v")
            ]
            assert np.array_equal(tensors[f"{layer}.attention.qkv.weight"], np.concatenate(parts))
    assert not [name for name in made.ranks[0] if name.startswith("eagle_nets.2")]
    assert "eagle: the network is written 2 times, once for each drafting step" in made.notes


def test_what_an_eagle_network_lacks_is_filled_and_noted(tmp_path: Path) -> None:
    """The network of TensorRT-LLM has a bias and an embedding (NVIDIA/TensorRT-LLM#2588, vllm-project/vllm#9565)."""
    weights = target(tmp_path)
    write_speculator(tmp_path / "heads", eagle_weights(bias=False, embedding=False), layer_config())
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE))["eagle"]
    drafter = "eagle_nets.1.drafter"
    assert not made.one(f"{drafter}.fc.bias").any()
    assert made.one(f"{drafter}.fc.bias").shape == (32,)
    assert np.array_equal(made.one(f"{drafter}.vocab_embedding.weight"), weights["model.embed_tokens.weight"])
    assert "eagle: fc has no bias: zeros stand for it" in made.notes
    assert "eagle: the target's embedding is copied for the network" in made.notes


def test_two_eagle_layers_keep_the_norm_of_the_second(tmp_path: Path) -> None:
    weights = target(tmp_path)
    net = matching_eagle(weights, layers=2)
    write_speculator(tmp_path / "heads", net, layer_config(num_hidden_layers=40))
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE))["eagle"]
    layers = "eagle_nets.0.drafter.layers"
    assert np.array_equal(made.one(f"{layers}.1.input_layernorm.weight"), net["layers.1.input_layernorm.weight"])
    assert f"{layers}.0.input_layernorm.weight" not in made.ranks[0]


def test_a_reduced_vocabulary_is_written_once_with_its_map(tmp_path: Path) -> None:
    target(tmp_path)
    table = vocabulary_map(20, 50)["d2t"]
    net = {**eagle_weights(embedding=False), **random_arrays({"lm_head.weight": (20, 32)}), "d2t": table}
    write_speculator(tmp_path / "heads", net, layer_config(draft_vocab_size=20))
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE, precision="fp16"))["eagle"]
    own = made.config["eagle_net_config"]
    assert isinstance(own, dict)
    assert own["draft_vocab_size"] == 20
    assert {name.split(".")[1] for name in made.ranks[0] if name.startswith("eagle_nets.")} == {"0"}
    assert made.one("eagle_nets.0.d2t").dtype == np.int64
    assert np.array_equal(made.one("eagle_nets.0.d2t"), table)
    assert made.one("eagle_nets.0.lm_head.weight").shape == (20, 32)
    assert "eagle_nets.0.drafter.vocab_embedding.weight" not in made.ranks[0]


# --- EAGLE-3 and MTP ----------------------------------------------------------------------------------------------


def test_eagle3_lies_beside_the_target(tmp_path: Path) -> None:
    target(tmp_path)
    config = layer_config(hidden_size=24, head_dim=6, draft_vocab_size=20)
    net = eagle3_weights(config, target_hidden=32, embedding=True)
    write_speculator(tmp_path / "heads", net, config)
    found = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE3, tp_size=2, pp_size=2))
    assert set(found) == {"target", "eagle3"}
    made = found["eagle3"]
    assert len(made.ranks) == 1
    shown = ("architecture", "hidden_size", "target_hidden_size", "draft_vocab_size", "vocab_size", "head_size", "taps")
    assert [made.config[key] for key in shown] == ["Eagle3Drafter", 24, 32, 20, 50, 6, [2, 1, 0]]
    assert set(made.ranks[0]) == {
        "eagle3.fc.weight",
        "eagle3.ln_f.weight",
        "eagle3.lm_head.weight",
        "eagle3.d2t",
        "eagle3.vocab_embedding.weight",
        *(
            f"eagle3.layers.0.{name}.weight"
            for name in (
                "input_layernorm", "hidden_norm", "post_layernorm", "attention.qkv", "attention.dense",
                "mlp.fc", "mlp.gate", "mlp.proj",
            )
        ),
    }  # fmt: skip
    qkv = np.concatenate([net[f"midlayer.self_attn.{name}_proj.weight"] for name in ("q", "k", "v")])
    assert np.array_equal(made.one("eagle3.layers.0.attention.qkv.weight"), qkv)
    assert qkv.shape[1] == 48
    assert np.array_equal(made.one("eagle3.d2t"), net["d2t"])
    assert np.array_equal(made.one("eagle3.fc.weight"), net["fc.weight"])


def test_what_eagle3_shares_with_the_target_is_held_once(tmp_path: Path) -> None:
    """A copied head doubles the size of the network (vllm-project/vllm#6830)."""
    target(tmp_path)
    write_speculator(tmp_path / "heads", eagle3_weights(draft_rows=None), layer_config(draft_vocab_size=50))
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, EAGLE3))["eagle3"]
    assert not [name for name in made.ranks[0] if "lm_head" in name or "embedding" in name or "d2t" in name]
    assert (made.config["has_lm_head"], made.config["has_vocab_embedding"]) == (False, False)
    assert "no head is stored: the target's is used" in made.notes


@pytest.mark.parametrize("own", [True, False])
def test_an_mtp_module_lies_beside_the_target(tmp_path: Path, own: bool) -> None:
    weights = target(tmp_path)
    net = mtp_weights(head=own, embedding=own)
    if own:
        net["model.layers.3.embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    write_speculator(tmp_path / "heads", net, layer_config())
    made = checkpoints(tmp_path, write_heads_recipe(tmp_path, MTP, precision="fp16"))["mtp"]
    assert (made.config["architecture"], made.config["dtype"]) == ("MtpDrafter", "float16")
    prefix = "model.layers.3"
    for name, stored in (
        ("enorm", f"{prefix}.enorm"),
        ("hnorm", f"{prefix}.hnorm"),
        ("eh_proj", f"{prefix}.eh_proj"),
        ("ln_f", f"{prefix}.shared_head.norm"),
        ("layers.0.mlp.fc", f"{prefix}.mlp.gate_proj"),
        ("layers.0.input_layernorm", f"{prefix}.input_layernorm"),
    ):
        assert np.array_equal(made.one(f"mtp.{name}.weight"), net[f"{stored}.weight"].astype(np.float16)), name
    assert ("mtp.lm_head.weight" in made.ranks[0], "mtp.vocab_embedding.weight" in made.ranks[0]) == (own, own)


def test_a_speculator_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    target(tmp_path)
    write_speculator(tmp_path / "heads", medusa_weights(3))
    blueprint = draw_recipe(write_heads_recipe(tmp_path, MEDUSA), None).blueprint
    step = next(step for step in blueprint.steps if step.parameters.get("role") == "medusa")
    write_speculator(tmp_path / "heads", {name: value + 1 for name, value in medusa_weights(3).items()})
    with pytest.raises(Failure, match="heads changed since the plan was made"):
        make(step, tmp_path / "made")


def test_a_head_that_overflows_names_its_tensor(tmp_path: Path) -> None:
    target(tmp_path)
    heads = medusa_weights(2)
    heads["1.0.linear.weight"][3, 3] = 1e6
    write_speculator(tmp_path / "heads", heads)
    with pytest.raises(Failure, match=r"1\.0\.linear\.weight: 1 finite values of F32 become infinite in F16"):
        checkpoints(tmp_path, write_heads_recipe(tmp_path, MEDUSA, precision="fp16"))


# --- published files that are pickles -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speculator", "file"), [(MEDUSA, "medusa_lm_head.pt"), (EAGLE, "pytorch_model.bin")], ids=["medusa", "eagle"]
)
def test_pickles_of_authors_are_read_where_the_recipe_allows(tmp_path: Path, speculator: str, file: str) -> None:
    weights = target(tmp_path)
    made = medusa_weights(2) if speculator == MEDUSA else matching_eagle(weights)
    write_speculator(tmp_path / "heads", made, layer_config())
    recipe = write_heads_recipe(tmp_path, speculator)
    (role,) = set(safe := checkpoints(tmp_path / "safe", recipe)) - {"target"}
    (tmp_path / "heads" / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(value) for name, value in made.items()}, tmp_path / "heads" / file)
    with pytest.raises(Failure, match="pickles"):
        draw_recipe(recipe, None)
    recipe = write_heads_recipe(tmp_path, speculator.replace("path: heads", "path: heads, allow_pickle: true"))
    pickled = checkpoints(tmp_path / "pickled", recipe)[role]
    assert set(pickled.ranks[0]) == set(safe[role].ranks[0])
    for name, value in safe[role].ranks[0].items():
        assert np.array_equal(pickled.ranks[0][name], value), name
