"""The figures of one arm at one tier, from its raw records."""

from collections.abc import Sequence

from draftyard.nouns.report import ArmResult, Summary
from draftyard.nouns.timeline import RequestRecord
from draftyard.rules.measure import (
    bucket_rates,
    e2e_s,
    failures_by_kind,
    inter_chunk_gaps,
    output_rate,
    succeeded,
    time_to_first_text_s,
    token_events,
    token_weighted_tpot_s,
    tpot_industry_s,
    tpot_s,
    ttft_s,
)
from draftyard.rules.statistics import summarise

# Answers that came only after a refusal: they are counted, and never measured.
RECOVERED = "recovered"


def block_windows(records: Sequence[RequestRecord]) -> dict[int, tuple[float, float]]:
    """(first sending, last event) of every block, in seconds since the tier's start; failed requests take time too."""
    windows: dict[int, tuple[float, float]] = {}
    for record in records:
        start, end = windows.get(record.block, (record.sent_s, 0.0))
        windows[record.block] = (min(start, record.sent_s), max(end, record.sent_s + record.timeline.end_s))
    return windows


def arrivals(records: Sequence[RequestRecord]) -> tuple[tuple[float, int], ...]:
    """(seconds, new tokens) of all events of an arm, its blocks put end to end."""
    windows = block_windows(records)
    offsets: dict[int, float] = {}
    elapsed = 0.0
    for block in sorted(windows):
        offsets[block] = elapsed - windows[block][0]
        elapsed += windows[block][1] - windows[block][0]
    return tuple(
        (record.sent_s + offsets[record.block] + time_s, tokens)
        for record in records
        for time_s, tokens in token_events(record.timeline)
    )


def from_schedule_s(record: RequestRecord) -> float:
    """From when the request was due to its last event; from its sending in a closed loop, where nothing is due."""
    late_s = 0.0 if record.scheduled_s is None else max(0.0, record.sent_s - record.scheduled_s)
    return late_s + e2e_s(record.timeline)


def achieved_rate_share(records: Sequence[RequestRecord]) -> float | None:
    """Rate of completion over the asked rate in an open loop, the lowest over its blocks; None in a closed one.

    Both over n - 1 gaps, so that the duration of the last request does not count as missing load.
    """
    shares = []
    for block in {record.block for record in records}:
        listed = [record for record in records if record.block == block and record.scheduled_s is not None]
        due = [record.scheduled_s or 0.0 for record in listed]
        ends = [record.sent_s + record.timeline.end_s for record in listed]
        if len(listed) > 1 and max(ends) > min(ends):
            shares.append((max(due) - min(due)) / (max(ends) - min(ends)))
    return min(shares, default=None)


def arm_result(records: Sequence[RequestRecord]) -> ArmResult:
    """All figures of one arm; rates are None when nothing succeeded. Raises ValueError if peak < average."""
    everything = [record.timeline for record in records]
    good = [record for record in records if succeeded([record.timeline]) and record.attempts == 1]
    measured = [record.timeline for record in good]
    recovered = len(succeeded(everything)) - len(good)
    wall_s = sum(end - start for start, end in block_windows(records).values())
    tokens = sum(timeline.tokens for timeline in measured)
    rate = tokens / wall_s if wall_s > 0 and tokens else None
    peak = max(bucket_rates(arrivals(good), wall_s), default=None) if rate is not None else None
    if rate is not None and peak is not None and peak < rate * (1 - 1e-9):
        raise ValueError(f"peak rate {peak} below the average {rate}")
    gaps = [inter_chunk_gaps(timeline) for timeline in measured]
    chunks = sum(gap.chunks for gap in gaps)
    weighted = token_weighted_tpot_s(measured)
    return ArmResult(
        requests=len(records),
        succeeded=len(measured),
        failures={**failures_by_kind(everything), **({RECOVERED: recovered} if recovered else {})},
        output_tokens=tokens,
        wall_s=wall_s,
        output_tokens_per_s=rate,
        output_tokens_per_s_per_user=output_rate(measured),
        peak_tokens_per_s=peak,
        ttft_ms=milliseconds([ttft_s(timeline) for timeline in measured]),
        time_to_first_text_ms=milliseconds([time_to_first_text_s(timeline) for timeline in measured]),
        tpot_ms=milliseconds([tpot_s(timeline) for timeline in measured]),
        tpot_token_weighted_ms=None if weighted is None else weighted * 1000,
        tpot_industry_ms=milliseconds([tpot_industry_s(timeline) for timeline in measured]),
        inter_chunk_latency_ms=milliseconds([gap for each in gaps for gap in each.gaps_s]),
        merged_events=sum(gap.merged_events for gap in gaps),
        tokens_per_chunk=tokens / chunks if chunks else None,
        e2e_ms=milliseconds([e2e_s(timeline) for timeline in measured]),
        e2e_from_schedule_ms=milliseconds(
            [from_schedule_s(record) for record in good if record.scheduled_s is not None]
        ),
        count_mismatch_share=sum(timeline.count_mismatch for timeline in measured) / tokens if tokens else 0.0,
    )


def milliseconds(values_s: Sequence[float | None]) -> Summary | None:
    """A summary in milliseconds; undefined values are left out and counted."""
    known = [value * 1000 for value in values_s if value is not None]
    return summarise(known, left_out=len(values_s) - len(known))
