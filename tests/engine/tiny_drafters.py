"""Small drafters written out in plain torch (no cache, everything computed anew), and engine directories with them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny_engines import DTYPES, Sizes, write_engine
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

PREFIX = {"eagle": "eagle_nets.0.drafter", "eagle3": "eagle3", "mtp": "mtp"}
SIZES = Sizes()
HEAD_PREFIX = {"eagle": "eagle_nets.0", "eagle3": "eagle3", "mtp": "mtp"}


class TinyDrafter(nn.Module):
    """Parameters carry their names in the checkpoint; `rows` are the tokens of a reduced head, in its order."""

    def __init__(
        self,
        kind: str,
        target: LlamaForCausalLM,
        *,
        seed: int = 5,
        hidden: int | None = None,
        layers: int = 1,
        biased: bool = True,
        rows: Sequence[int] | None = None,
        own_head: bool = False,
        own_embedding: bool = False,
        taps: Sequence[int] = (1, 2, 3),
    ) -> None:
        super().__init__()
        config = target.config
        self.kind, self.target, self.count, self.rows = kind, [target], layers, rows
        self.hidden = hidden or config.hidden_size
        self.heads, self.kv_heads, self.head_size, self.inner = 4, 2, 16, 80
        self.epsilon, self.vocabulary = 1e-5, config.vocab_size
        self.taps = tuple(taps) if kind == "eagle3" else (-1,)
        self.named: dict[str, nn.Parameter] = {}
        generator = torch.Generator().manual_seed(seed)
        for name, size in self._sizes(biased, len(self.taps) * config.hidden_size).items():
            value = torch.randn(size, generator=generator) * 0.2
            self._put(name, value + 1.0 if name.endswith(("norm.weight", "ln_f.weight")) else value)
        if own_head or rows is not None:
            size = self.vocabulary if rows is None else len(rows)
            if self.hidden == config.hidden_size and rows is not None:
                self._put("lm_head.weight", target.lm_head.weight.data[list(rows)].clone())
            else:
                self._put("lm_head.weight", torch.randn(size, self.hidden, generator=generator) * 0.2)
        if own_embedding:
            self._put("vocab_embedding.weight", torch.randn(self.vocabulary, self.hidden, generator=generator) * 0.2)

    def _put(self, name: str, value: Tensor) -> None:
        self.named[name] = nn.Parameter(value)
        self.register_parameter(name.replace(".", "/"), self.named[name])

    def _sizes(self, biased: bool, features: int) -> dict[str, tuple[int, ...]]:
        hidden, rows = self.hidden, (self.heads + 2 * self.kv_heads) * self.head_size
        sizes: dict[str, tuple[int, ...]] = {}
        if self.kind == "eagle":
            sizes["fc.weight"] = (hidden, 2 * hidden)
            if biased:
                sizes["fc.bias"] = (hidden,)
        elif self.kind == "eagle3":
            sizes |= {"fc.weight": (hidden, features), "layers.0.hidden_norm.weight": (hidden,)}
        else:
            sizes |= {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden)}
        if self.kind != "eagle":
            sizes["ln_f.weight"] = (hidden,)
        for layer in range(self.count):
            name = f"layers.{layer}"
            if self.kind != "eagle" or layer:
                sizes[f"{name}.input_layernorm.weight"] = (hidden,)
            sizes[f"{name}.post_layernorm.weight"] = (hidden,)
            sizes[f"{name}.attention.qkv.weight"] = (
                rows,
                2 * hidden if self.kind == "eagle3" and not layer else hidden,
            )
            sizes[f"{name}.attention.dense.weight"] = (hidden, self.heads * self.head_size)
            sizes[f"{name}.mlp.fc.weight"] = sizes[f"{name}.mlp.gate.weight"] = (self.inner, hidden)
            sizes[f"{name}.mlp.proj.weight"] = (hidden, self.inner)
        return sizes

    # --- the network, position by position as the papers write it ---

    def first_states(self, features: Tensor) -> Tensor:
        """Of tokens whose target features are known."""
        return features @ self.named["fc.weight"].T if self.kind == "eagle3" else features

    def states(self, tokens: Sequence[int], given: Tensor) -> Tensor:
        """Row i joins token i of `tokens` with row i of `given`; all rows causal."""
        hidden, read = self._joined(tokens, given)
        for layer in range(self.count):
            if layer:
                read = self._norm(hidden, f"layers.{layer}.input_layernorm.weight")
            hidden = hidden + self._attention(layer, read)
            inner = self._norm(hidden, f"layers.{layer}.post_layernorm.weight")
            gate = functional.silu(inner @ self.named[f"layers.{layer}.mlp.fc.weight"].T)
            up = inner @ self.named[f"layers.{layer}.mlp.gate.weight"].T
            hidden = hidden + (gate * up) @ self.named[f"layers.{layer}.mlp.proj.weight"].T
        return self._norm(hidden, "ln_f.weight") if self.kind == "mtp" else hidden

    def logits(self, states: Tensor) -> Tensor:
        """Over the whole vocabulary; what a reduced one lacks is impossible."""
        if self.kind == "eagle3":
            states = self._norm(states, "ln_f.weight")
        head = self.named.get("lm_head.weight", self.target[0].lm_head.weight)
        if self.rows is None:
            return states @ head.T
        whole = torch.full((len(states), self.vocabulary), float("-inf"))
        whole[:, list(self.rows)] = states @ head.T
        return whole

    def behind(self, text: Sequence[int], features: Tensor, path: Sequence[int]) -> Tensor:
        """Logits behind a drafted path: the text's true features, then the drafter's own states, all from scratch."""
        given = self.first_states(features[: len(text) - 1])
        tokens = list(text[1:])
        for token in path:
            given = torch.cat((given, self.states(tokens, given)[-1:]))
            tokens.append(token)
        return self.logits(self.states(tokens, given)[-1:])[0]

    def _joined(self, tokens: Sequence[int], given: Tensor) -> tuple[Tensor, Tensor]:
        table = self.named.get("vocab_embedding.weight", self.target[0].model.embed_tokens.weight)
        embedded = table[list(tokens)]
        if self.kind == "eagle":
            stream = torch.cat((embedded, given), dim=1) @ self.named["fc.weight"].T + self.named.get("fc.bias", 0.0)
            return stream, stream
        if self.kind == "eagle3":
            first = self._norm(embedded, "layers.0.input_layernorm.weight")
            return given, torch.cat((first, self._norm(given, "layers.0.hidden_norm.weight")), dim=1)
        halves = (self._norm(embedded, "enorm.weight"), self._norm(given, "hnorm.weight"))
        stream = torch.cat(halves, dim=1) @ self.named["eh_proj.weight"].T
        return stream, self._norm(stream, "layers.0.input_layernorm.weight")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.named[name]

    def _attention(self, layer: int, read: Tensor) -> Tensor:
        count, size = len(read), self.head_size
        sizes = [self.heads * size, self.kv_heads * size, self.kv_heads * size]
        q, k, v = (read @ self.named[f"layers.{layer}.attention.qkv.weight"].T).split(sizes, dim=1)
        q, k = (self._turned(x.view(count, -1, size).transpose(0, 1)) for x in (q, k))
        v = v.view(count, -1, size).transpose(0, 1)
        k, v = (x.repeat_interleave(self.heads // self.kv_heads, dim=0) for x in (k, v))
        scores = q @ k.transpose(1, 2) / size**0.5
        scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        return mixed @ self.named[f"layers.{layer}.attention.dense.weight"].T

    def _turned(self, x: Tensor) -> Tensor:
        size = self.head_size
        angles = torch.outer(
            torch.arange(x.shape[1], dtype=torch.float32), 10_000.0 ** -(torch.arange(0, size, 2) / size)
        ).repeat(1, 2)
        swapped = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), dim=-1)
        return x * angles.cos() + swapped * angles.sin()

    # --- as it is stored ---

    def config(self, dtype: torch.dtype) -> dict[str, object]:
        """The net's own config, but for what its kind adds."""
        config = self.target[0].config
        sizes: dict[str, object] = {
            "architecture": {"eagle": "LlamaForCausalLM", "eagle3": "Eagle3Drafter", "mtp": "MtpDrafter"}[self.kind],
            "dtype": DTYPES[dtype],
            "hidden_size": self.hidden,
            "num_hidden_layers": self.count,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_size": self.head_size,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 512,
            "norm_epsilon": self.epsilon,
            "rotary_base": 10_000.0,
            "rotary_scaling": None,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        }
        if self.rows is not None:
            sizes["draft_vocab_size"] = len(self.rows)
        if self.kind == "eagle3":
            sizes |= {"taps": list(self.taps), "target_hidden_size": config.hidden_size}
        return sizes

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Under the names of its checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, value in self.named.items():
            prefix = HEAD_PREFIX[self.kind] if name.startswith("lm_head") else PREFIX[self.kind]
            tensors[f"{prefix}.{name}"] = value.detach().to(dtype)
        if self.rows is not None:
            offsets = torch.tensor(list(self.rows)) - torch.arange(len(self.rows))
            tensors[f"{HEAD_PREFIX[self.kind]}.d2t"] = offsets
        return tensors


def features_of(drafter: TinyDrafter, tokens: Sequence[int]) -> Tensor:
    """[tokens, features] of the target, as transformers computes them."""
    with torch.inference_mode():
        out = drafter.target[0].model(torch.tensor([list(tokens)]), output_hidden_states=True)
    return torch.cat([out.last_hidden_state[0] if t < 0 else out.hidden_states[t][0] for t in drafter.taps], dim=1)


def write_drafter_engine(
    directory: Path,
    drafter: TinyDrafter,
    speculator: Mapping[str, object],
    *,
    sizes: Sizes = SIZES,
    dtype: torch.dtype = torch.float32,
    tp_size: int = 1,
) -> Path:
    """An engine directory: an EAGLE net in the target's own files, the others beside them."""
    config, tensors = drafter.config(dtype), drafter.tensors(dtype)
    block = {"kind": drafter.kind, **speculator}
    if drafter.kind == "eagle":
        own = {"architecture": "EagleForCausalLM", "eagle_net_config": {**config, "hidden_act": "silu"}}
        write_engine(
            directory, drafter.target[0], speculator=block, sizes=sizes, dtype=dtype, tp_size=tp_size, pretrained=own
        )
        for rank in range(tp_size):
            path = directory / f"rank{rank}.safetensors"
            mine = {name: _shard(drafter, name, value, tp_size, rank) for name, value in tensors.items()}
            save_file({**load_file(path), **mine}, path)
        return directory
    write_engine(directory, drafter.target[0], speculator=block, sizes=sizes, dtype=dtype, tp_size=tp_size)
    beside = directory / "speculator"
    beside.mkdir()
    (beside / "config.json").write_text(json.dumps({"version": "1.2.1", "pretrained_config": config}))
    save_file(tensors, beside / "rank0.safetensors")
    return directory


def _shard(drafter: TinyDrafter, name: str, value: Tensor, tp_size: int, rank: int) -> Tensor:
    if name.endswith("qkv.weight"):
        size = drafter.head_size
        parts = value.split([drafter.heads * size, drafter.kv_heads * size, drafter.kv_heads * size])
        return torch.cat([part.chunk(tp_size)[rank] for part in parts]).contiguous()
    if name.endswith(("dense.weight", "proj.weight")):
        return value.chunk(tp_size, dim=1)[rank].contiguous()
    if name.endswith(("norm.weight", "d2t", "vocab_embedding.weight")):
        return value.contiguous()
    return (
        functional.pad(value, (0, 0) * (value.dim() - 1) + (0, -len(value) % tp_size)).chunk(tp_size)[rank].contiguous()
    )


# --- the same trees, drawn node by node ---


def top(logits: Tensor, width: int) -> list[tuple[int, float]]:
    """Likeliest tokens and their logarithms."""
    best = logits.log_softmax(-1).topk(width)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def static_tree(
    drafter: TinyDrafter, text: Sequence[int], features: Tensor, choices: Sequence[Sequence[int]]
) -> dict[tuple[int, ...], float]:
    """Token paths and their joint log-probabilities."""
    found: dict[tuple[int, ...], tuple[tuple[int, ...], float]] = {(): ((), 0.0)}
    for choice in sorted(map(tuple, choices), key=len):
        path, score = found[choice[:-1]]
        token, log = top(drafter.behind(text, features, path), choice[-1] + 1)[choice[-1]]
        found[choice] = ((*path, token), score + log)
    return {path: score for path, score in found.values() if path}


def dynamic_tree(
    drafter: TinyDrafter, text: Sequence[int], features: Tensor, top_k: int, continued: int, depth: int
) -> dict[tuple[int, ...], float]:
    """All nodes of EAGLE-2's first phase."""
    nodes: dict[tuple[int, ...], float] = {}
    front: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(depth):
        level = {
            (*path, token): score + log
            for path, score in front.items()
            for token, log in top(drafter.behind(text, features, path), top_k)
        }
        nodes |= level
        front = dict(sorted(level.items(), key=lambda item: -item[1])[: min(continued, top_k)])
    return nodes


def train(drafter: TinyDrafter, texts: Sequence[Sequence[int]], steps: int) -> None:
    """Teach the drafter the target's own texts: the token behind each row, from true features alone."""
    known = [(list(text), features_of(drafter, text).clone()) for text in texts]
    optimiser = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = torch.zeros(())
        for text, features in known[:4]:
            states = drafter.states(text[1:-1], drafter.first_states(features[:-2]))
            loss = loss + functional.cross_entropy(drafter.logits(states), torch.tensor(text[2:]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        known = known[4:] + known[:4]
