"""Builds the engines of the benchmark from a model directory, by the very steps a build takes."""

from pathlib import Path

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.recipe import Limits, NgramSpeculator
from draftyard.rules.trtllm import checkpoint_config, reference_engine_config
from draftyard.verbs.compile import make_engine
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace

LIMITS = Limits(max_batch_size=16, max_input_len=512, max_seq_len=1024, max_num_tokens=1024)
NGRAM = NgramSpeculator(kind=SpeculatorKind.NGRAM, max_draft_len=5, min_match=2, max_match=4)
# Passages that are begun again: what a copy-heavy request looks like to a model too small to follow "repeat this".
PASSAGES = (
    "Apples, green pears, ripe plums, sweet cherries, dried figs, fresh dates, red grapes and wild berries.\n",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))\nprint(area(5, 6))\n",
    "The quick brown fox jumps over the lazy dog near the bank of the river while the old farmer sleeps.\n",
    '{"name": "pump", "parts": [{"id": 1, "size": 20}, {"id": 2, "size": 24}], "unit": "mm"}\n',
)
COPY_PROMPTS = tuple(passage * 3 for passage in PASSAGES)


def build_engines(model: Path, scratch: Path) -> Path:
    """`scratch`/{fp16,fp32}/{none,ngram}: engines of the reference lane, ready to load."""
    source = inspect(model)
    for precision in (Precision.FP16, Precision.FP32):
        root = scratch / precision.value
        config = checkpoint_config(source.network, precision, 1, 1)
        parameters = {"role": "target", "config": config}
        checkpoint = Step(StepKind.CHECKPOINT, "target", parameters, (source.digest,), {}, (str(model),))
        (root / "checkpoint").mkdir(parents=True)
        make_checkpoint(checkpoint, Workplace(root / "checkpoint", Path, (model,), _silent))
        for speculator in (None, NGRAM):
            engine_config = reference_engine_config(
                checkpoint=config,
                limits=LIMITS,
                speculator=speculator,
                kv_cache_tokens=LIMITS.max_batch_size * (LIMITS.max_seq_len + NGRAM.max_draft_len),
                tensorrt_llm_version="1.2.1",
            )
            settings = {"lane": "reference", "gpu": "cpu", "config": engine_config}
            step = Step(StepKind.ENGINE, "engine", settings, (checkpoint.key,), {})
            place = root / (speculator.kind.value if speculator else "none")
            place.mkdir()
            make_engine(step, Workplace(place, lambda key, root=root: root / "checkpoint", (), _silent))
    return scratch


def _silent(share: float, words: str) -> None:
    """A benchmark shows no progress of its preparation."""
