"""The reference engine as an arm: tokens per second after every prompt has been read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.arms import Moment, Reading
from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import GenerationRequest, SpeculationStatistics


@dataclass(frozen=True)
class Decoded:
    """Tokens and time of a run, the output of each prompt, and the final statistics."""

    reading: Reading
    outputs: Mapping[str, list[int]]
    statistics: tuple[SpeculationStatistics, ...]

    @property
    def acceptance_length(self) -> float:
        """Accepted + 1 per verification step, over all sequences."""
        steps = sum(one.steps for one in self.statistics)
        return 1 + sum(one.accepted for one in self.statistics) / max(steps, 1)


def decode(
    engine: ReferenceEngine, prompts: Sequence[Sequence[int]], tokens: int, draft_len: int | None = None
) -> Decoded:
    """Decode all prompts at once to the end; the clock starts when the last of them has its first token."""
    for place, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(str(place), tuple(prompt), tokens, max_draft_len=draft_len))
    outputs: dict[str, list[int]] = {str(place): [] for place in range(len(prompts))}
    final: list[SpeculationStatistics] = []
    started, counted = None, 0
    while engine.has_work:
        for event in engine.step():
            if event.error:
                raise RuntimeError(event.error)
            outputs[event.request_id].extend(event.token_ids)
            counted += len(event.token_ids) if started else 0
            if event.finish_reason is not None and event.statistics is not None:
                final.append(event.statistics)
        if not started and all(outputs.values()):
            started = Moment.now()
    if started is None:
        raise RuntimeError("no prompt got a token")
    return Decoded(Reading.between(started, Moment.now(), counted), outputs, tuple(final))


def decode_speed(
    engine: ReferenceEngine, prompts: Sequence[Sequence[int]], tokens: int, draft_len: int | None = None
) -> Reading:
    """Tokens and time alone."""
    return decode(engine, prompts, tokens, draft_len).reading


def widened(directory: Path, place: Path, batch: int, threads: int) -> ReferenceEngine:
    """The engine of a directory with room for `batch` sequences of its full length, in a directory of links."""
    place.mkdir(parents=True)
    config = json.loads((directory / "config.json").read_text())
    build = config["build_config"]
    build["max_batch_size"] = batch
    config["draftyard"]["kv_cache_tokens"] = batch * build["max_seq_len"]
    (place / "config.json").write_text(json.dumps(config))
    for other in directory.iterdir():
        if other.name != "config.json":
            (place / other.name).symlink_to(other.resolve())
    return load_engine(place, open_tensor_file, threads=threads)


def recipe_engines(out: Path, recipe: str) -> dict[str, Path]:
    """Engine directories of a recipe's float16 variants by speculator, of those that have been built."""
    record = out / "by-recipe" / f"{recipe}.json"
    if not record.is_file():
        return {}
    found = {}
    for step in json.loads(record.read_text())["steps"]:
        directory = out / "engine" / step["key"]
        if step["kind"] == "engine" and (directory / "config.json").is_file():
            config = json.loads((directory / "config.json").read_text())
            if config.get("draftyard") and config["pretrained_config"]["dtype"] == "float16":
                found.setdefault(config["draftyard"]["speculator"]["kind"], directory)
    return found
