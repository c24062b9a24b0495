"""How long drafts may be at which load: the measured policy, as a value."""

from dataclasses import dataclass
from itertools import pairwise

from draftyard.nouns.errors import Failure


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """From `running` sequences on, drafts have at most `max_draft_len` tokens; 0 switches speculation off."""

    running: int
    max_draft_len: int


@dataclass(frozen=True, slots=True)
class SpeculationSchedule:
    """Steps by rising load; below the first one, and without any, the schedule sets no limit.

    Failure when loads do not rise from 1 on or a length is negative.
    """

    steps: tuple[ScheduleStep, ...] = ()

    def __post_init__(self) -> None:
        loads = [0, *(step.running for step in self.steps)]
        if any(later <= earlier for earlier, later in pairwise(loads)):
            raise Failure(
                f"the schedule's loads {loads[1:]} do not rise from 1 on", "sort the steps by load, each once"
            )
        negative = [step.max_draft_len for step in self.steps if step.max_draft_len < 0]
        if negative:
            raise Failure(f"the schedule has a draft length of {negative[0]}", "0 switches speculation off")

    def limit(self, running: int) -> int | None:
        """The longest draft with so many sequences running; None when the schedule says nothing."""
        reached = [step for step in self.steps if step.running <= running]
        return reached[-1].max_draft_len if reached else None


NO_SCHEDULE = SpeculationSchedule()
