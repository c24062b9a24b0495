"""A repository of the tensorrt lane's layout, target and draft apart, whose engines the reference engine executes."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.fakes.tiny_model import config_of, random_weights, write_model
from tests.fakes.triton_repository import workplace
from tests.verbs.test_convert import converted

from draftyard.doors.shipped_files import guests_digest
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.policy import Policy
from draftyard.nouns.recipe import DraftTargetSpeculator, Limits, Serving
from draftyard.rules.triton_repository import repository_parameters
from draftyard.rules.trtllm import reference_engine_config
from draftyard.verbs.inspect import inspect
from draftyard.verbs.package import make_repository

SPECULATOR = DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="draft", max_draft_len=4)
LIMITS = Limits(max_batch_size=8, max_input_len=96, max_seq_len=128, max_num_tokens=256)
KV_CACHE_TOKENS = 8 * 132


def pair_config() -> dict[str, object]:
    """A target whose greedy text wanders, so that a draft that is nearly the target is right now and then."""
    return config_of(max_position_embeddings=256)


def pair_weights(noise: float = 0.0) -> Mapping[str, np.ndarray]:
    """The target's weights, or with noise those of a draft that agrees with it now and then."""
    weights, generator = random_weights(pair_config()), np.random.default_rng(9)
    wide = {name: value * 2.0 if value.ndim > 1 else value for name, value in weights.items()}
    return {
        name: value + noise * generator.standard_normal(value.shape, dtype=np.float32) for name, value in wide.items()
    }


def _write_engine(checkpoint: Path, directory: Path, max_draft_len: int) -> None:
    """An engine as trtllm-build would name its files, with what the reference engine needs beside them."""
    config = reference_engine_config(
        checkpoint=json.loads((checkpoint / "config.json").read_text()),
        limits=LIMITS.model_copy(update={"max_input_len": LIMITS.max_seq_len - 1}),
        speculator=None,
        kv_cache_tokens=KV_CACHE_TOKENS,
        tensorrt_llm_version="1.2.1",
    )
    config["build_config"]["max_draft_len"] = max_draft_len
    config["build_config"]["max_seq_len"] = LIMITS.max_seq_len + max_draft_len
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "rank0.engine").touch()
    (directory / "rank0.safetensors").hardlink_to(checkpoint / "rank0.safetensors")


def pair_step(model: Path, policy: Policy | None = None) -> Step:
    """The step that packages the engines under the keys `target-engine` and `draft-engine`."""
    source = inspect(model)
    parameters = repository_parameters(
        lane=Lane.TENSORRT,
        limits=LIMITS,
        serving=Serving(max_queue_size=64, default_timeout_s=60),
        speculator=SPECULATOR,
        kv_cache_tokens=KV_CACHE_TOKENS,
        end_ids=source.end_ids,
        vocab_size=source.network.vocab_size,
        logits_dtype="float32",
        guests_digest=guests_digest(),
        policy=policy,
    )
    inputs = ("target-engine", "draft-engine", source.tokenizer.digest)
    return Step(StepKind.REPOSITORY, "r", parameters, inputs, {}, (str(model),))


def packaged_pair(root: Path, noise: float, policy: Policy | None = None) -> Path:
    """The repository in `root`/repository; `noise` 0 makes a draft that is always right."""
    model = write_model(root / "model", pair_config(), pair_weights())
    draft = write_model(root / "draft-model", pair_config(), pair_weights(noise))
    for name, directory, longest in (("target", model, SPECULATOR.max_draft_len), ("draft", draft, 0)):
        converted(directory, root / name, Precision.FP32)
        _write_engine(root / name, root / f"{name}-engine", longest)
    make_repository(pair_step(model, policy), workplace(root, "repository", model))
    return root / "repository"
