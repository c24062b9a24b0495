"""Arms of a comparison take turns, because a shared machine drifts; the best round of each is compared."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What a run may vary: threads of every arm, and rounds measured."""

    threads: int
    rounds: int


@dataclass(frozen=True)
class Moment:
    """Both clocks at once: the wall's, and the processor time of all threads of this process."""

    wall_s: float
    cpu_s: float

    @staticmethod
    def now() -> "Moment":
        """This moment."""
        return Moment(time.perf_counter(), time.process_time())


@dataclass(frozen=True)
class Reading:
    """So many tokens in so much time. Where others use the machine too, processor time is the fairer of the two."""

    tokens: int
    wall_s: float
    cpu_s: float

    @staticmethod
    def between(start: Moment, end: Moment, tokens: int) -> "Reading":
        """What was decoded from one moment to another."""
        return Reading(tokens, end.wall_s - start.wall_s, end.cpu_s - start.cpu_s)


@dataclass(frozen=True)
class Speeds:
    """One arm over the rounds. The best round is least disturbed by what else the machine does."""

    readings: tuple[Reading, ...]

    @property
    def best(self) -> float:
        """Tokens per second of the fastest round."""
        return max(self._by_wall)

    @property
    def best_by_cpu(self) -> float:
        """Tokens per second of processor time, of the round that needed least."""
        return max(one.tokens / one.cpu_s for one in self.readings)

    @property
    def _by_wall(self) -> list[float]:
        return [one.tokens / one.wall_s for one in self.readings]

    def as_json(self) -> dict[str, float | int]:
        """Best by processor time and by the wall, median, spread (of the fastest), and number of rounds."""
        return {
            "best_by_cpu": round(self.best_by_cpu, 1),
            "best": round(self.best, 1),
            "median": round(statistics.median(self._by_wall), 1),
            "spread": round(1 - min(self._by_wall) / self.best, 3),
            "n": len(self.readings),
        }


def take_turns(arms: Mapping[str, Callable[[], Reading]], rounds: int) -> dict[str, Speeds]:
    """Each arm once a round, in order."""
    found: dict[str, list[Reading]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            found[name].append(arm())
    return {name: Speeds(tuple(values)) for name, values in found.items()}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A text table, with the load of the machine as it is now."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return "\n".join([f"{title}  [load {load} on {os.cpu_count()} processors]", *lines, ""])
