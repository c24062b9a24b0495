"""What each figure of a report means, beside which it is printed."""

DEFINITIONS: dict[str, str] = {
    "TTFT": "Time to first token: from sending a request to its first event with a generated token.",
    "TPOT": "Time per output token: (E2E - TTFT) / (output tokens - tokens in the first event); mean over requests.",
    "TPOT, token-weighted": "The same with decode times and tokens summed over requests before dividing.",
    "TPOT, industry formula": "(E2E - TTFT) / (output tokens - 1); too small when the first event has several tokens.",
    "inter_chunk_latency": "Distance between streamed events with tokens; events of one network read count as one. "
    "Not a time per token: an event may carry several.",
    "E2E": "From sending a request to its last event.",
    "output tokens/s": "Output tokens of all requests over the wall time of the arm's blocks.",
    "output tokens/s per user": "Output tokens over the seconds their requests took, both summed over requests.",
    "speed-up": "Output tokens/s per user with speculation over without, on the same prompts, server and load.",
    "95 % interval": "Bootstrap error over turns or over prompts, the larger one, with Student's t for few turns.",
    "acceptance length": "Accepted draft tokens + 1 per decode step, pooled over steps: the bonus token counts.",
    "acceptance rate": "Accepted draft tokens over drafted ones, both counted by the server.",
    "acceptance by position": "Steps that accepted this draft position over steps that accepted all before it.",
    "step cost": "Acceptance length over the TPOT ratio: what a speculative step costs, in plain steps.",
    "crossover": "Load at which the speed-up falls through 1, linear in the logarithm of the load between tiers.",
    "percentiles": "Linear interpolation; p95 needs 20 values, p99 needs 100, else not given.",
}

METHOD: tuple[str, ...] = (
    "All arms run on one server: num_draft_tokens 0 is the baseline, the engine's own draft length the other arm; the "
    "policy's arm drafts by the load of the moment, as the repository does or the client in its place.",
    "The arms take turns in small blocks (ABBA, three arms in all six orders) on identical prompts, greedy.",
    "Closed loop: so many requests in flight. Open loop: requests by a clock that waits for no answer, timed from when "
    "they were due.",
    "Each request begins with an id of its own, so that a prefix cache has nothing of it; where the recipe keeps the "
    "cache, each prompt is asked once before.",
    "Each tier asks other prompts as long as the pack lasts; warm-up prompts are never measured.",
    "Only answers with an end mark and at least one token are measured; failures are counted by kind, and what needed "
    "a second try is never measured.",
    "Losslessness: prompts as they are, three times in each arm, in other orders and in company; plain decoding "
    "against itself gives the noise floor.",
    "Tokens are counted by ids or by the server's counter, never by events.",
)
