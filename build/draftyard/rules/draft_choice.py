"""Picks draft lengths by the load of the moment, as a server with a policy does; for servers that have none yet."""

from draftyard.nouns.policy import Policy


class DraftChoice:
    """Follows requests in flight with a policy's steps and hysteresis.

    A step is entered at its load and left when the load has fallen `hysteresis` requests further than needed.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._running = 0
        self._reached = 0

    def moved(self, change: int) -> None:
        """So many requests more are in flight, or fewer."""
        self._running += change
        steps = self._policy.steps
        while self._reached < len(steps) and self._running >= steps[self._reached].running:
            self._reached += 1
        while self._reached and self._running < steps[self._reached - 1].running - self._policy.hysteresis:
            self._reached -= 1

    def draft_tokens(self, engine_length: int) -> int:
        """The draft length of a request that is sent now; `engine_length` where the policy says nothing."""
        return self._policy.steps[self._reached - 1].max_draft_len if self._reached else engine_length
