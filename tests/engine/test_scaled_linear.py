"""FP8 in the reference engine: what it computes is fake quantisation in transformers, and a wrong scale shows."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny_engines import Sizes, loaded
from tests.fakes.fp8_checkpoints import WISHES, Cut, calibrated, fp8_checkpoint
from tests.verbs.test_transformers_models import SIZES, saved
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftyard.engine.linear import PlainLinear, make_linear
from draftyard.engine.reference import ReferenceEngine
from draftyard.engine.runs import Run
from draftyard.engine.scaled_linear import RoundedInputLinear, ScaledLinear, rounded, through_fp8, values_of
from draftyard.nouns.errors import Failure
from draftyard.nouns.recipe import Quantisation
from draftyard.rules.float8 import from_e4m3, to_e4m3

PLAIN_CACHE = Quantisation()
WHOLE = Cut()
PROMPT = (3, 17, 42, 8, 9, 23, 31, 5)


def fp8(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def random_model(kind: type[PreTrainedModel], config: object) -> PreTrainedModel:
    torch.manual_seed(1)
    model = kind(config)
    for value in model.parameters():
        value.data.normal_(0, 0.25)
    return model.eval()


def engine_of(root: Path, model: PreTrainedModel, wishes: Quantisation = WISHES, cut: Cut = WHOLE) -> Path:
    """An engine directory from a model: calibrated on a few texts, converted, and the engine's config put around."""
    directory = saved(root / "m", model)
    (root / "texts").write_text("\n".join(f"a w{4 + index} w{4 + index * 5 % 40} w7 w9 w21" for index in range(20)))
    calibration = calibrated(directory, root / "ranges", root / "texts")
    fp8_checkpoint(directory, root / "engine", calibration, cut, wishes)
    write_engine_config(root / "engine")
    return root / "engine"


def write_engine_config(directory: Path) -> None:
    sizes = Sizes(max_seq_len=100)
    build = {
        "max_input_len": sizes.max_input_len,
        "max_seq_len": sizes.max_seq_len,
        "max_batch_size": sizes.max_batch_size,
        "max_num_tokens": sizes.max_num_tokens,
        "max_draft_len": 0,
    }
    config = {
        "version": "1.2.1",
        "pretrained_config": json.loads((directory / "config.json").read_text()),
        "build_config": build,
        "draftyard": {"lane": "reference", "speculator": {"kind": "none", "max_draft_len": 0}, "threads": 1},
    }
    (directory / "config.json").write_text(json.dumps(config))


def engine_logits(engine: ReferenceEngine) -> torch.Tensor:
    return engine._decoder.forward([Run(0, 0, PROMPT, 0)])


def fake_quantised(model: PreTrainedModel, tensors: dict[str, torch.Tensor], half: bool) -> torch.Tensor:
    """Logits of transformers with the checkpoint's scales put into its linear modules and its cache."""
    names = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "dense"}
    names |= {"gate_proj": "fc", "up_proj": "gate", "down_proj": "proj"}
    for name, module in model.named_modules():
        short = name.rpartition(".")[2]
        if isinstance(module, torch.nn.Linear) and short in names:
            layer = name.split(".")[2]
            block = "attention" if "attn" in name else "mlp"
            at = f"transformer.layers.{layer}.{block}.{names[short]}"
            scale = tensors[f"{at}.weights_scaling_factor"].item()
            module.weight.data = fp8(module.weight.data, scale)
            active = tensors[f"{at}.activation_scaling_factor"].item()
            module.register_forward_pre_hook(lambda _, given, active=active: (fp8(given[0], active), *given[1:]))
    if half:
        for name, value in model.named_parameters():
            if not any(short in name for short in names):
                value.data = value.data.half().float()

    class RoundedCache(DynamicCache):
        def update(self, keys, values, layer, *rest, **more):
            scale = tensors.get(f"transformer.layers.{layer}.attention.kv_cache_scaling_factor")
            if scale is not None:
                keys, values = fp8(keys, scale.item()), fp8(values, scale.item())
            return super().update(keys, values, layer, *rest, **more)

    with torch.no_grad():
        return model(torch.tensor([PROMPT]), cache=RoundedCache(), use_cache=True).logits[0]


@pytest.mark.parametrize("wishes", [WISHES, PLAIN_CACHE], ids=["fp8 cache", "plain cache"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_engine_computes_what_fake_quantisation_in_transformers_does(
    tmp_path: Path, family: str, wishes: Quantisation
) -> None:
    if family == "llama":
        model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))
    else:
        model = random_model(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16))
    directory = engine_of(tmp_path, model, wishes)
    tensors = load_file(directory / "rank0.safetensors")
    assert any("kv_cache_scaling_factor" in name for name in tensors) == (wishes is WISHES)
    plain = model(torch.tensor([PROMPT])).logits[0]
    expected = fake_quantised(model, tensors, half=True)
    found = engine_logits(loaded(directory))
    off = (found - expected).norm() / expected.norm()
    # Sums in another order move a value over a rounding boundary now and then; quantisation itself costs far more.
    assert off < 0.02
    assert (plain - expected).norm() / expected.norm() > 4 * off


def test_ranks_and_stages_give_the_same_bits(tmp_path: Path) -> None:
    model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES))
    whole = engine_logits(loaded(engine_of(tmp_path / "one", model)))
    for cut in (Cut(2, 1), Cut(4, 2)):
        found = engine_logits(loaded(engine_of(tmp_path / f"{cut.tp_size}{cut.pp_size}", model, cut=cut)))
        assert torch.equal(found, whole)


def test_a_quantised_head_is_put_together_from_its_ranks(tmp_path: Path) -> None:
    wishes = Quantisation(exclude_modules=("*vocab_embedding",))
    model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=False))
    directory = engine_of(tmp_path / "one", model, wishes)
    head = load_file(directory / "rank0.safetensors")["lm_head.weight"]
    assert head.dtype is torch.float8_e4m3fn
    whole = engine_logits(loaded(directory))
    assert torch.equal(engine_logits(loaded(engine_of(tmp_path / "cut", model, wishes, Cut(4, 2)))), whole)
    plain = model(torch.tensor([PROMPT])).logits[0]
    assert (whole - plain).norm() / plain.norm() < 0.3


def test_experts_execute_in_fp8(tmp_path: Path) -> None:
    model = random_model(MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=4))
    expected = model(torch.tensor([PROMPT])).logits[0]
    found = engine_logits(loaded(engine_of(tmp_path, model)))
    assert (found - expected).norm() / expected.norm() < 0.2


def spoiled(directory: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> ReferenceEngine:
    path = directory / "rank0.safetensors"
    tensors = load_file(path)
    tensors[name] = change(tensors[name])
    path.unlink()
    save_file(tensors, path)
    return loaded(directory)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("transformer.layers.0.attention.qkv.activation_scaling_factor", 1 / 64),
        ("transformer.layers.1.mlp.proj.weights_scaling_factor", 2.0),
        ("transformer.layers.0.attention.kv_cache_scaling_factor", 4096.0),
    ],
)
def test_a_wrong_scale_shows(tmp_path: Path, name: str, factor: float) -> None:
    model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES))
    directory = engine_of(tmp_path, model)
    tensors = load_file(directory / "rank0.safetensors")
    expected = fake_quantised(model, tensors, half=True)
    found = engine_logits(spoiled(directory, name, lambda scale: scale * factor))
    assert (found - expected).norm() / expected.norm() > 0.1


def test_halves_of_a_feed_forward_may_have_scales_of_their_own(tmp_path: Path) -> None:
    """Other tools write such checkpoints: each half's rows get their own scale."""
    model = random_model(LlamaForCausalLM, LlamaConfig(**SIZES))
    directory = engine_of(tmp_path, model)
    name = "transformer.layers.0.mlp.fc.weights_scaling_factor"
    engine = spoiled(directory, name, lambda scale: scale * 2)
    tensors = load_file(directory / "rank0.safetensors")
    model.model.layers[0].mlp.gate_proj.weight.data *= 2
    expected = fake_quantised(model, tensors, half=True)
    found = engine_logits(engine)
    assert (found - expected).norm() / expected.norm() < 0.02


def test_a_scale_that_is_not_there_is_named(tmp_path: Path) -> None:
    directory = engine_of(tmp_path, random_model(LlamaForCausalLM, LlamaConfig(**SIZES)))
    path = directory / "rank0.safetensors"
    tensors = load_file(path)
    del tensors["transformer.layers.1.attention.kv_cache_scaling_factor"]
    path.unlink()
    save_file(tensors, path)
    with pytest.raises(Failure, match=r"layers\.1\.attention\.kv_cache_scaling_factor"):
        loaded(directory)


@pytest.mark.parametrize("scale", [0.013, 1.0, 7.3])
def test_rounding_is_the_conversions(scale: float) -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 300
    found = rounded(x, scale)
    expected = from_e4m3(to_e4m3((x / scale).numpy()))
    np.testing.assert_array_equal(found.numpy(), expected)
    assert torch.equal(through_fp8(x, scale), found * scale)


def test_a_product_of_codes_is_scaled_afterwards() -> None:
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 126, (6, 8), generator=generator, dtype=torch.uint8)
    x, bias = torch.randn(3, 8, generator=generator), torch.randn(6, generator=generator)
    scales = torch.linspace(0.01, 0.02, 6)
    product = ScaledLinear(PlainLinear(values_of(codes).float(), None), scales * 0.05, 0.05, bias)
    weight = values_of(codes).float() * scales.unsqueeze(1)
    expected = through_fp8(x, 0.05) @ weight.T + bias
    torch.testing.assert_close(product(x), expected, rtol=1e-5, atol=1e-5)
    narrow = RoundedInputLinear(PlainLinear(weight.bfloat16(), bias.bfloat16()), 0.05)
    torch.testing.assert_close(narrow(x.bfloat16()).float(), expected, rtol=0.05, atol=0.1)


def test_more_rows_give_the_bits_of_single_rows() -> None:
    """Verifying a draft must give what single steps give."""
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 126, (48, 64), generator=generator, dtype=torch.uint8)
    product = ScaledLinear(make_linear(values_of(codes), None, True), torch.tensor([0.001]), 0.02, None)
    x = torch.randn(9, 64, generator=generator)
    together = product(x)
    assert torch.equal(together, torch.cat([product(row.unsqueeze(0)) for row in x]))
