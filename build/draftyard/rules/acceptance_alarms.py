"""What in acceptance figures cannot be right, and what differs from a golden file."""

from collections.abc import Mapping, Sequence

import numpy as np

from draftyard.nouns.golden_acceptance import GoldenAcceptance, GoldenRow
from draftyard.nouns.report import Acceptance, TierResult
from draftyard.nouns.report_part import Interval
from draftyard.nouns.timeline import Timeline
from draftyard.rules.acceptance_figures import accepted_by_step
from draftyard.rules.clusters import Figures, estimate

ALL_DOMAINS = "all"
GREEDY = "greedy"
LEAST_STEPS = 20
# Relative difference to a golden value that is a change, when the intervals are apart as well.
TOLERANCE = 0.05
# Longest at a low load over shortest at a high one: acceptance is a matter of texts, not of company.
BATCH_FALL = 0.10
SEED = 20240311


def length_interval(timelines: Sequence[Timeline]) -> tuple[float, Interval, int] | None:
    """Pooled acceptance length, its 95 % interval over requests, and how many requests; None below two requests."""
    rows = []
    for timeline in timelines:
        try:
            steps = accepted_by_step(timeline)
        except ValueError:
            continue
        if steps:
            rows.append((sum(steps) + len(steps), len(steps)))
    if len(rows) < 2:
        return None

    def log_length(sums: Figures) -> Figures:
        return np.asarray(np.log(sums[..., 0] / sums[..., 1]), dtype=np.float64)

    found = estimate(np.array(rows, dtype=np.float64), [list(range(len(rows)))], log_length, SEED)
    span = None if found is None else found.interval()
    return None if found is None or span is None else (found.value, span, len(rows))


def alarms(acceptance: Acceptance | None, tiers: Sequence[TierResult], draft_length: int) -> tuple[str, ...]:
    """Figures that point to a fault of the speculator or of its counting, in words."""
    if acceptance is None:
        return ()
    found = []
    length = acceptance.acceptance_length if acceptance.steps >= LEAST_STEPS else None
    if length == 1.0:
        found.append("acceptance length is exactly 1: no draft is ever accepted, or the accepted ones are not counted")
    if length is not None and draft_length and length >= draft_length + 1:
        found.append(
            f"acceptance length is exactly its maximum {draft_length + 1}: drafts are counted, not what was accepted"
        )
    if acceptance.inconsistent_requests:
        found.append(
            f"{acceptance.inconsistent_requests} of {acceptance.requests} answers have fewer tokens than the server "
            "says it accepted, or more: its counter is wrong"
        )
    return (*found, *batch_alarm(tiers))


def batch_alarm(tiers: Sequence[TierResult]) -> tuple[str, ...]:
    """Says so when the acceptance length falls from the lowest load to the highest."""
    lengths = [
        (tier.concurrency, tier.acceptance.acceptance_length)
        for tier in tiers
        if tier.concurrency and tier.acceptance.acceptance_length is not None and tier.acceptance.steps >= LEAST_STEPS
    ]
    known = [(load, length) for load, length in lengths if length is not None]
    if len(known) < 2:
        return ()
    (low, first), (high, last) = known[0], known[-1]
    if (first - last) / first <= BATCH_FALL:
        return ()
    return (
        f"acceptance length falls from {first:.2f} at {low} to {last:.2f} at {high} concurrent requests: "
        "drafts of a batch may get mixed up",
    )


def tree_alarm(smaller: float, larger: float, noise: float = BATCH_FALL) -> str:
    """Acceptance lengths of a tree and of one that holds it: the larger one cannot be worse; "" when it is not."""
    if larger >= smaller * (1 - noise):
        return ""
    return f"a larger tree accepts less ({larger:.2f} against {smaller:.2f}): the runtime's trees are suspect"


def better_tree(small: tuple[int, float, float], large: tuple[int, float, float]) -> str:
    """(nodes, acceptance length, step cost) of two trees: which one yields more tokens in the same time, and why."""
    best, other = sorted((small, large), key=lambda tree: tree[1] / tree[2], reverse=True)
    return (
        f"take the tree of {best[0]} nodes: {best[1]:.2f} tokens at {best[2]:.2f} plain steps are "
        f"{best[1] / best[2]:.2f} times plain decoding, {other[0]} nodes give {other[1] / other[2]:.2f}"
    )


def golden_rows(
    by_domain: Mapping[str, Sequence[Timeline]], target: str, speculator: str, precision: str, draft_length: int
) -> tuple[GoldenRow, ...]:
    """One row for each domain that has figures, and one for all prompts together; greedy decoding."""
    groups = {ALL_DOMAINS: [one for listed in by_domain.values() for one in listed], **by_domain}
    rows = []
    for domain, timelines in groups.items():
        found = length_interval(timelines)
        if found is not None:
            value, span, count = found
            rows.append(
                GoldenRow(
                    target=target,
                    speculator=speculator,
                    precision=precision,
                    draft_length=draft_length,
                    domain=domain,
                    sampling=GREEDY,
                    value=value,
                    low=span.low,
                    high=span.high,
                    n=count,
                )
            )
    return tuple(rows)


def golden_differences(golden: GoldenAcceptance, rows: Sequence[GoldenRow]) -> tuple[str, ...]:
    """Rows that changed by more than the tolerance, with intervals that do not touch; rows that are new are let be."""
    known = {row.key: row for row in golden.rows}
    found = []
    for row in rows:
        was = known.get(row.key)
        if was is None:
            continue
        apart = row.high < was.low or row.low > was.high
        if apart and abs(row.value / was.value - 1) > TOLERANCE:
            found.append(
                f"{row.speculator}, {row.domain}: acceptance length {row.value:.2f}, {was.value:.2f} at the release"
            )
    return tuple(found)


def golden_missing(golden: GoldenAcceptance, rows: Sequence[GoldenRow]) -> tuple[str, ...]:
    """Golden rows of these speculators that could not be checked, as domain names."""
    keys = {row.key for row in rows}
    speculators = {row.speculator for row in rows}
    return tuple(
        f"{row.speculator}, {row.domain}"
        for row in golden.rows
        if row.speculator in speculators and row.key not in keys
    )
