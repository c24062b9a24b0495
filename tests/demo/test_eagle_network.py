"""The EAGLE head as it is trained guesses what the engine guesses with the same weights, drafting step by step."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines.demo.eagle_network import EagleHead, Pairs, pairs_of  # noqa: E402
from engines.demo.features import Seen  # noqa: E402
from engines.demo.training_text import Answer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from draftyard.doors.tensors import open_tensor_file  # noqa: E402
from draftyard.engine.configuration import decoder_shape  # noqa: E402
from draftyard.engine.drafter_network import DrafterNetwork, causal_window  # noqa: E402
from draftyard.engine.drafter_weights import Room, TargetParts  # noqa: E402
from draftyard.engine.eagle_network import read_eagle  # noqa: E402
from draftyard.engine.weights import RankFiles, read_weights  # noqa: E402

HIDDEN, HEADS, KV_HEADS, INNER, VOCABULARY, STEPS = 128, 2, 1, 96, 50, 3
LENGTHS = ((5, 7), (9, 6), (3, 9))
SIZES = {
    "dtype": "float32",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_size": 64,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "norm_epsilon": 1e-5,
    "rotary_base": 100000.0,
    "rotary_scaling": None,
    "hidden_act": "silu",
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
}


def texts() -> list[Seen]:
    draw = torch.Generator().manual_seed(4)
    seen = []
    for prompt, answer in LENGTHS:
        ids = torch.randint(0, VOCABULARY, (prompt + answer,), generator=draw).tolist()
        one = Answer(tuple(ids[:prompt]), tuple(ids[prompt:]), torch.empty(0), torch.empty(0), False, "0" * 64)
        seen.append(Seen(one, torch.randn(prompt + answer, HIDDEN, generator=draw)))
    return seen


def trained() -> EagleHead:
    torch.manual_seed(11)
    model = EagleHead(HIDDEN, HEADS, KV_HEADS, INNER, dropout=0.5).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_((value + 0.1 * torch.randn_like(value)).half().float())
    return model


def layer_tensors(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    attention, mlp = "layers.0.self_attn", "layers.0.mlp"
    return {
        f"{prefix}.layers.0.attention.qkv.weight": torch.cat([stored[f"{attention}.{x}_proj.weight"] for x in "qkv"]),
        f"{prefix}.layers.0.attention.dense.weight": stored[f"{attention}.o_proj.weight"],
        f"{prefix}.layers.0.mlp.fc.weight": stored[f"{mlp}.gate_proj.weight"],
        f"{prefix}.layers.0.mlp.gate.weight": stored[f"{mlp}.up_proj.weight"],
        f"{prefix}.layers.0.mlp.proj.weight": stored[f"{mlp}.down_proj.weight"],
        f"{prefix}.layers.0.post_layernorm.weight": stored["layers.0.post_attention_layernorm.weight"],
    }


def engine_network(model: EagleHead, embedding: Tensor, ids: Tensor, directory: Path) -> DrafterNetwork:
    stored = {name: value.float() for name, value in model.stored().items()}
    drafter = "eagle_nets.0.drafter"
    tensors = layer_tensors(stored, "transformer") | layer_tensors(stored, drafter)
    tensors["transformer.layers.0.input_layernorm.weight"] = torch.ones(HIDDEN)
    tensors["transformer.ln_f.weight"] = torch.ones(HIDDEN)
    tensors["transformer.vocab_embedding.weight"] = embedding
    tensors |= {f"{drafter}.fc.weight": stored["fc.weight"], f"{drafter}.fc.bias": stored["fc.bias"]}
    tensors["eagle_nets.0.lm_head.weight"] = embedding[ids]
    tensors["eagle_nets.0.d2t"] = ids - torch.arange(len(ids))
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, directory / "rank0.safetensors")
    files, shape, device = (
        [open_tensor_file(directory / "rank0.safetensors")],
        decoder_shape(SIZES),
        torch.device("cpu"),
    )
    parts = TargetParts(shape, RankFiles(files, shape), read_weights(files, shape, device))
    net = {**SIZES, "draft_vocab_size": len(ids)}
    return read_eagle({"eagle_net_config": net}, parts, Room(1, 64, device))


@torch.inference_mode()
def drafted(network: DrafterNetwork, one: Seen, known: int) -> list[Tensor]:
    """States of the drafting steps behind `known` true pairs, the true tokens being drafted."""
    tokens, states = one.tokens, [torch.empty(0)] * STEPS
    out = network.forward([causal_window(0, 0, known)], torch.tensor(tokens[1 : known + 1]), one.features[:known])
    states[0] = out[-1]
    for step in range(1, STEPS):
        place = known + step - 1
        window = causal_window(0, place, 1)
        states[step] = network.forward([window], torch.tensor([tokens[place + 1]]), states[step - 1][None])[0]
    return states


def test_each_drafting_step_is_the_engines(tmp_path: Path) -> None:
    model, embedding = trained(), torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(2))
    ids = torch.arange(0, VOCABULARY, 3)
    network = engine_network(model, embedding, ids, tmp_path)
    pairs: Pairs = pairs_of(texts(), embedding)
    with torch.inference_mode():
        guesses = model(pairs, STEPS)
    compared = 0
    for row, one in enumerate(texts()):
        prompt, answer = LENGTHS[row]
        for first in range(answer - STEPS):
            states = drafted(network, one, prompt + first)
            for step, state in enumerate(states):
                guessed = guesses[step][row, first + step]
                torch.testing.assert_close(guessed, state, rtol=1e-3, atol=1e-3)
                torch.testing.assert_close(
                    embedding[ids] @ guessed, network.logits(state[None])[0], rtol=1e-3, atol=2e-2
                )
                assert bool(pairs.valid(step)[row, first + step])
                compared += 1
    assert compared == STEPS * sum(answer - STEPS for _, answer in LENGTHS)


def test_padding_changes_nothing() -> None:
    model, embedding = trained(), torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(2))
    together = model(pairs_of(texts(), embedding), STEPS)
    for row, one in enumerate(texts()):
        alone = model(pairs_of([one], embedding), STEPS)
        for step in range(STEPS):
            taught = slice(step, len(one.text.answer) - 1)
            torch.testing.assert_close(together[step][row, taught], alone[step][0, taught], rtol=1e-4, atol=1e-4)
