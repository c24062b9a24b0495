"""Speed figures from token timelines: TTFT, TPOT, chunk gaps, output rates; an event is never taken for a token."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.nouns.timeline import Outcome, Timeline

# Responses closer than this came in one network read; their distance says nothing about the server.
MERGE_GAP_S = 0.0001


def token_events(timeline: Timeline) -> tuple[tuple[float, int], ...]:
    """(arrival, new tokens) of every event that brought tokens, in order; ValueError if a count falls."""
    pairs = []
    seen = 0
    for event in timeline.events:
        if event.tokens < seen:
            raise ValueError("the cumulative token count falls")
        if event.tokens > seen:
            pairs.append((event.time_s, event.tokens - seen))
            seen = event.tokens
    return tuple(pairs)


def ttft_s(timeline: Timeline) -> float | None:
    """Time to first token: from sending to the first event with a generated token; None without one."""
    pairs = token_events(timeline)
    return pairs[0][0] if pairs else None


def time_to_first_text_s(timeline: Timeline) -> float | None:
    """From sending to the first visible text; later than TTFT when the text is held back; None without text."""
    return next((event.time_s for event in timeline.events if event.text), None)


def e2e_s(timeline: Timeline) -> float:
    """From sending to the last event."""
    return timeline.events[-1].time_s if timeline.events else timeline.end_s


def decode_tokens(timeline: Timeline) -> int:
    """Output tokens after the first event: what decoding, not the prefill, produced."""
    pairs = token_events(timeline)
    return sum(count for _, count in pairs[1:])


def tpot_s(timeline: Timeline) -> float | None:
    """TPOT = (E2E - TTFT) / (output tokens - tokens in the first event); None when the first event was the last."""
    first = ttft_s(timeline)
    count = decode_tokens(timeline)
    return None if first is None or count == 0 else (e2e_s(timeline) - first) / count


def tpot_industry_s(timeline: Timeline) -> float | None:
    """(E2E - TTFT) / (output tokens - 1), as most tools define TPOT; None below two tokens.

    It is too small when the first event carries several tokens; shown for comparison, never gated on.
    """
    first = ttft_s(timeline)
    if first is None or timeline.tokens < 2:
        return None
    return (e2e_s(timeline) - first) / (timeline.tokens - 1)


def token_weighted_tpot_s(timelines: Sequence[Timeline]) -> float | None:
    """Sum of decode times over sum of decode tokens: long answers weigh more than in the mean over requests."""
    measured = [timeline for timeline in timelines if tpot_s(timeline) is not None]
    count = sum(decode_tokens(timeline) for timeline in measured)
    seconds = sum(e2e_s(timeline) - (ttft_s(timeline) or 0.0) for timeline in measured)
    return seconds / count if count else None


@dataclass(frozen=True, slots=True)
class Gaps:
    """Distances between chunks in seconds, and how many events were merged into the one before."""

    gaps_s: tuple[float, ...]
    merged_events: int
    chunks: int


def inter_chunk_gaps(timeline: Timeline) -> Gaps:
    """`inter_chunk_latency`: distances between events with tokens; events of one network read count as one."""
    times: list[float] = []
    merged = 0
    for time_s, _ in token_events(timeline):
        if times and time_s - times[-1] < MERGE_GAP_S:
            merged += 1
        else:
            times.append(time_s)
    gaps = tuple(later - earlier for earlier, later in itertools.pairwise(times))
    return Gaps(gaps, merged, len(times))


def bucket_rates(arrivals: Sequence[tuple[float, int]], window_s: float, width_s: float = 1.0) -> tuple[float, ...]:
    """Tokens per second in each bucket of the window; a last, shorter bucket is divided by its own width.

    The rates weighted by their widths give the average, so the peak is never below it. Arrivals in 0..window_s.
    """
    if window_s <= 0:
        return ()
    count = max(1, -int(-window_s // width_s))
    totals = [0] * count
    for time_s, tokens in arrivals:
        totals[min(int(time_s / width_s), count - 1)] += tokens
    if sum(totals) != sum(tokens for _, tokens in arrivals):
        raise ValueError("bucket sums differ from the token total")
    widths = [min(width_s, window_s - index * width_s) for index in range(count)]
    return tuple(total / width for total, width in zip(totals, widths, strict=True))


def succeeded(timelines: Sequence[Timeline]) -> tuple[Timeline, ...]:
    """Only complete answers are measurements."""
    return tuple(timeline for timeline in timelines if timeline.outcome is Outcome.SUCCESS)


def failures_by_kind(timelines: Sequence[Timeline]) -> dict[str, int]:
    """How many requests failed, by kind."""
    kinds = [timeline.outcome.value for timeline in timelines if timeline.outcome is not Outcome.SUCCESS]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def output_rate(timelines: Sequence[Timeline]) -> float | None:
    """Output tokens per second of one user: tokens over the seconds the requests took, summed over requests."""
    seconds = sum(e2e_s(timeline) for timeline in timelines)
    return sum(timeline.tokens for timeline in timelines) / seconds if seconds > 0 else None
