"""Plans of repositories, and repositories made of a tiny model."""

import shutil
from pathlib import Path

from tests.fakes.tiny_model import config_of, write_model
from tests.verbs.test_compile import step_for as engine_step
from tests.verbs.test_convert import converted

from draftyard.doors.shipped_files import guests_digest
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import DraftTargetSpeculator, Limits, NgramSpeculator, Serving, Speculator
from draftyard.nouns.repository import LogitsType, RepositoryPlan
from draftyard.rules.triton_repository import repository_parameters
from draftyard.verbs.compile import make_engine
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace

SPECULATORS: dict[str, Speculator | None] = {
    "none": None,
    "ngram": NgramSpeculator(kind=SpeculatorKind.NGRAM),
    "draft_target": DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="draft", max_draft_len=3),
}
# The sizes that tests of the engine are made with.
LIMITS = Limits(max_batch_size=2, max_input_len=32, max_seq_len=64, max_num_tokens=64)


def plan_of(**changes: object) -> RepositoryPlan:
    """A plan as a recipe for a small chat model gives it."""
    plan = RepositoryPlan(
        lane=Lane.REFERENCE,
        speculator=SpeculatorKind.NONE,
        max_draft_len=0,
        max_batch_size=8,
        max_input_len=1024,
        max_seq_len=2048,
        kv_cache_tokens=16384,
        max_queue_size=64,
        default_timeout_s=300.0,
        end_ids=(2, 128009),
        vocab_size=49152,
        logits_type=LogitsType.FLOAT32,
        guests_digest="0" * 64,
    )
    return plan.model_copy(update=changes)


def repository_step(model: Path, speculator: Speculator | None) -> Step:
    """The step that makes a repository of the engine under the key `engine`."""
    source = inspect(model)
    parameters = repository_parameters(
        lane=Lane.REFERENCE,
        limits=LIMITS,
        serving=Serving(max_queue_size=16, default_timeout_s=30),
        speculator=speculator,
        kv_cache_tokens=128,
        end_ids=source.end_ids,
        vocab_size=source.network.vocab_size,
        logits_dtype="float32",
        guests_digest=guests_digest(),
    )
    return Step(StepKind.REPOSITORY, "r", parameters, ("engine", source.tokenizer.digest), {}, (str(model),))


def workplace(tmp_path: Path, name: str, model: Path) -> Workplace:
    """A place to make `tmp_path`/name in; keys of inputs are names of folders in `tmp_path`."""
    staging = tmp_path / name
    staging.mkdir()
    return Workplace(staging, lambda key: tmp_path / key, (model,), lambda share, words: None)


def write_engine(tmp_path: Path, speculator: Speculator | None, tp_size: int = 1) -> Path:
    """A tiny model in `tmp_path`/model and its engine in `tmp_path`/engine; returns the model."""
    model = write_model(tmp_path / "model")
    checkpoint = converted(model, tmp_path / "target", Precision.FP32, tp_size)
    inputs: tuple[str, ...] = ("target",)
    if isinstance(speculator, DraftTargetSpeculator):
        small = config_of(num_hidden_layers=1)
        converted(write_model(tmp_path / "small", small), tmp_path / "draft", Precision.FP32)
        inputs = ("target", "draft")
    make_engine(engine_step(checkpoint, speculator, inputs), workplace(tmp_path, "engine", model))
    return model


def scripted_backends(directory: Path) -> Path:
    """A folder of backends in which the scripted engine answers for `tensorrtllm`."""
    fake = Path(__file__).parent / "triton_engine" / "1"
    shutil.copytree(fake, directory / "tensorrtllm", ignore=shutil.ignore_patterns("__pycache__"))
    return directory
