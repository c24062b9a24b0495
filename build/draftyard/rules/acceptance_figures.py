"""Acceptance of drafts from token timelines; every name for it, each under its own name."""

from collections.abc import Sequence

from draftyard.nouns.report import Acceptance
from draftyard.nouns.timeline import Timeline
from draftyard.rules.measure import token_events
from draftyard.rules.statistics import summarise


def accepted_by_step(timeline: Timeline) -> tuple[int, ...]:
    """Accepted drafts of each decode step: its tokens less the target's own one.

    In the last step the answer may end inside the drafts, so that none of its tokens is the target's own; the
    server's total settles that step. ValueError when the total fits neither way.
    """
    steps = [count - 1 for _, count in token_events(timeline)[1:]]
    if timeline.accepted is None or not steps:
        return tuple(steps)
    last = timeline.accepted - sum(steps[:-1])
    if last not in (steps[-1], steps[-1] + 1):
        raise ValueError(f"the server counts {timeline.accepted} accepted drafts, the stream shows {sum(steps)}")
    return (*steps[:-1], last)


def acceptance_rate(accepted: int, drafted: int) -> float | None:
    """Accepted over drafted, in 0..1; None without drafts; ValueError when more were accepted than drafted."""
    if accepted < 0 or drafted < accepted:
        raise ValueError(f"{accepted} accepted of {drafted} drafted tokens is impossible")
    return accepted / drafted if drafted else None


def per_position(steps: Sequence[int], draft_length: int) -> tuple[float | None, ...]:
    """Conditional rate of each draft position: steps that accepted it over steps that accepted all before it."""
    rates: list[float | None] = []
    reached = len(steps)
    for position in range(1, draft_length + 1):
        taken = sum(1 for count in steps if count >= position)
        rates.append(taken / reached if reached else None)
        reached = taken
    return tuple(rates)


def histogram(steps: Sequence[int], draft_length: int) -> tuple[int, ...]:
    """Steps by number of accepted drafts, 0 to `draft_length`."""
    return tuple(sum(1 for count in steps if count == accepted) for accepted in range(draft_length + 1))


def pooled_acceptance(timelines: Sequence[Timeline], draft_length: int) -> Acceptance:
    """All decode steps of these requests together, with the spread over requests beside it.

    A request whose stream contradicts the server's total is left out and counted in `inconsistent_requests`.
    """
    consistent: list[tuple[Timeline, tuple[int, ...]]] = []
    for timeline in timelines:
        try:
            consistent.append((timeline, accepted_by_step(timeline)))
        except ValueError:
            continue
    steps = [count for _, counts in consistent for count in counts]
    known = all(timeline.drafted is not None and timeline.accepted is not None for timeline, _ in consistent)
    drafted = sum(timeline.drafted or 0 for timeline, _ in consistent) if known and consistent else None
    accepted = sum(timeline.accepted or 0 for timeline, _ in consistent) if known and consistent else None
    mean = sum(steps) / len(steps) if steps else None
    longest = max([draft_length, *steps])
    return Acceptance(
        requests=len(timelines),
        steps=len(steps),
        drafted=drafted,
        accepted=accepted,
        mean_accepted_per_step=mean,
        acceptance_length=None if mean is None else 1.0 + mean,
        acceptance_rate=None if drafted is None or accepted is None else acceptance_rate(accepted, drafted),
        per_position=per_position(steps, longest),
        histogram=histogram(steps, longest),
        per_request_length=summarise([1.0 + sum(counts) / len(counts) for _, counts in consistent if counts]),
        inconsistent_requests=len(timelines) - len(consistent),
    )
