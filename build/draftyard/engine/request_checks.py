"""What a request must satisfy before it may wait for a slot."""

import math

from draftyard.engine.configuration import EngineLimits
from draftyard.nouns.errors import Failure, Problem, raise_problems
from draftyard.nouns.generation import GenerationRequest


def check_request(request: GenerationRequest, limits: EngineLimits, vocabulary: int) -> None:
    """Raise a Failure that names everything wrong with a request."""
    raise_problems(
        [*_length_problems(request, limits), *_id_problems(request, vocabulary), *_sampling_problems(request)]
    )
    needed = len(request.input_ids) + request.max_tokens + limits.max_draft_len
    if needed > limits.kv_cache_tokens:
        raise Failure(
            f"the request needs {needed} tokens of KV cache and the engine has {limits.kv_cache_tokens}",
            "raise serving.kv_cache_tokens or ask for fewer tokens",
        )


def _length_problems(request: GenerationRequest, limits: EngineLimits) -> list[Problem]:
    count, problems = len(request.input_ids), []
    if count == 0:
        problems.append(Problem("the prompt is empty", "send at least one token"))
    if count > limits.max_input_len:
        message = f"the prompt has {count} tokens and max_input_len is {limits.max_input_len}"
        problems.append(Problem(message, "shorten the prompt or build with a larger max_input_len"))
    if request.max_tokens < 1:
        problems.append(Problem(f"max_tokens is {request.max_tokens}", "ask for at least one token"))
    elif count + request.max_tokens > limits.max_seq_len:
        message = f"{count} prompt + {request.max_tokens} output tokens exceed max_seq_len {limits.max_seq_len}"
        problems.append(Problem(message, "ask for fewer tokens or build with a larger max_seq_len"))
    if request.max_draft_len is not None and request.max_draft_len < 0:
        problems.append(Problem(f"the draft length is {request.max_draft_len}", "0 switches speculation off"))
    if len(request.draft_ids) > limits.max_draft_len:
        message = f"the draft has {len(request.draft_ids)} tokens and the engine verifies {limits.max_draft_len}"
        problems.append(Problem(message, "draft fewer tokens or build with a larger max_draft_len"))
    elif request.draft_ids and len(request.draft_ids) >= request.max_tokens:
        message = f"the draft has {len(request.draft_ids)} tokens and {request.max_tokens} are asked for"
        problems.append(Problem(message, "ask for one token more than the draft has"))
    return problems


def _id_problems(request: GenerationRequest, vocabulary: int) -> list[Problem]:
    runs = (request.input_ids, request.draft_ids, request.end_ids, *request.stop_sequences, *request.bad_sequences)
    strange = sorted({token for run in runs for token in run if not 0 <= token < vocabulary})
    problems = []
    if strange:
        problems.append(
            Problem(f"token id {strange[0]} is outside 0..{vocabulary - 1}", "use the model's own tokenizer")
        )
    if any(not run for run in (*request.stop_sequences, *request.bad_sequences)):
        problems.append(Problem("a stop or bad word has no tokens", "leave empty words out"))
    return problems


def _sampling_problems(request: GenerationRequest) -> list[Problem]:
    sampling = request.sampling
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    rules = (
        (all(math.isfinite(number) for number in numbers), "a sampling value is not a finite number"),
        (sampling.temperature > 0, f"temperature is {sampling.temperature} and must be above 0 (greedy is top_k 1)"),
        (sampling.top_k >= 0, f"top_k is {sampling.top_k} and must not be negative"),
        (0 < sampling.top_p <= 1, f"top_p is {sampling.top_p} and must lie in (0, 1]"),
        (sampling.repetition_penalty > 0, f"repetition_penalty is {sampling.repetition_penalty} and must be above 0"),
        (sampling.min_tokens >= 0, f"min_tokens is {sampling.min_tokens} and must not be negative"),
    )
    return [Problem(message, "correct the value") for holds, message in rules if not holds]
