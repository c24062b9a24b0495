"""How much is asked of a server at once: so many requests in flight, or so many a second."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Arrival(StrEnum):
    """When requests are sent: as places get free, or by a clock that does not wait for answers."""

    CLOSED = "closed"
    POISSON = "poisson"
    CONSTANT = "constant"


class CacheUse(StrEnum):
    """What a server's prefix cache may know of a prompt: nothing (each request begins otherwise), or all of it."""

    BUSTED = "busted"
    KEPT = "kept"


class Profile(StrEnum):
    """How much is looked at: whether it serves, where it pays, or everything."""

    SMOKE = "smoke"
    PERF = "perf"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One load: `concurrency` requests in flight in a closed loop, or `request_rate` a second in an open one."""

    concurrency: int = 0
    request_rate: float = 0.0
    arrival: Arrival = Arrival.CLOSED

    @property
    def words(self) -> str:
        """As people read it."""
        if self.arrival is Arrival.CLOSED:
            return f"concurrency {self.concurrency}"
        return f"{self.request_rate:g} requests/s ({self.arrival.value})"
