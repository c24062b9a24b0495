"""Reads one line of a prompt file: our own format, and those of the benchmarks that people have at hand."""

from collections.abc import Mapping

from draftyard.nouns.enums import StrEnum
from draftyard.nouns.prompt import Message, Prompt

OWN_KEYS = {"id", "domain", "split", "length", "messages", "max_tokens"}
SPEED_BENCH_KEYS = {"sub_category", "src_id", "difficulty", "multiturn"}
OTHER_DOMAIN = "other"


class PromptFormat(StrEnum):
    """Where a line comes from. Spec-Bench and MT-bench lines look alike; the latter have two turns."""

    OWN = "own"
    SPEED_BENCH = "SPEED-Bench"
    SPEC_BENCH = "Spec-Bench or MT-bench"
    TRTLLM_BENCH = "trtllm-bench"


def format_of(line: Mapping[str, object]) -> PromptFormat:
    """The format by its keys; ValueError when it is none of ours."""
    if "messages" in line:
        return PromptFormat.OWN
    if "turns" in line:
        return PromptFormat.SPEED_BENCH if SPEED_BENCH_KEYS & set(line) else PromptFormat.SPEC_BENCH
    if "prompt" in line or "input_ids" in line:
        return PromptFormat.TRTLLM_BENCH
    raise ValueError("neither messages, turns nor prompt")


def parse_prompt(line: object) -> Prompt:
    """One parsed line as a prompt; ValueError says what is wrong with it.

    Files of others have no split: all of theirs is `test`. Of several turns the first one is asked, since later ones
    follow on answers of another model. `output_tokens` of trtllm-bench limits the answer.
    """
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    kind = format_of(line)
    if kind is PromptFormat.OWN:
        return _own(line)
    if kind is PromptFormat.TRTLLM_BENCH:
        return _trtllm_bench(line)
    return _turns(line)


def _own(line: Mapping[str, object]) -> Prompt:
    unknown = sorted(set(line) - OWN_KEYS)
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    listed = line["messages"]
    if not isinstance(listed, list) or not listed:
        raise ValueError("messages must be a list of role and content")
    split = str(_needed(line, "split"))
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}: train or test")
    messages = tuple(Message(str(entry["role"]), str(entry["content"])) for entry in listed)
    identity, domain = str(_needed(line, "id")), str(_needed(line, "domain"))
    return Prompt(identity, domain, split, str(line.get("length", "")), messages, _limit(line, "max_tokens"))


def _turns(line: Mapping[str, object]) -> Prompt:
    turns = line["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise ValueError("turns must be a list of texts")
    return _foreign(str(_needed(line, "question_id")), str(line.get("category", OTHER_DOMAIN)), turns[0], None)


def _trtllm_bench(line: Mapping[str, object]) -> Prompt:
    text = line.get("prompt")
    if not isinstance(text, str):
        raise ValueError("prompt must be a text: token ids cannot be asked as a chat")
    return _foreign(str(_needed(line, "task_id")), OTHER_DOMAIN, text, _limit(line, "output_tokens"))


def _foreign(identity: str, domain: str, text: str, limit: int | None) -> Prompt:
    if not text.strip():
        raise ValueError("the prompt is empty")
    return Prompt(identity, domain, "test", "", (Message("user", text),), limit)


def _needed(line: Mapping[str, object], key: str) -> object:
    if key not in line:
        raise ValueError(f"{key} is missing")
    return line[key]


def _limit(line: Mapping[str, object], key: str) -> int | None:
    limit = line.get(key)
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"{key} must be a whole number above 0")
    return limit
