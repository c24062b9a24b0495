"""Writes Prometheus' text format (version 0.0.4) from counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Histogram:
    """How many values lay below each bound, in seconds."""

    bounds: tuple[float, ...] = LATENCY_BUCKETS_S
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        place = next((index for index, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1
        self.total += value


def metric(name: str, kind: str, words: str, samples: Mapping[Labels, float]) -> list[str]:
    """The lines of a counter or gauge; `samples` by their labels."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples.items()]


def histogram(name: str, words: str, found: Histogram) -> list[str]:
    """The lines of a histogram: counts add up from bound to bound."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} histogram"]
    below = 0
    for bound, count in zip((*(_number(bound) for bound in found.bounds), "+Inf"), found.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_labels((('le', bound),))} {below}")
    return [*lines, f"{name}_sum {_number(found.total)}", f"{name}_count {below}"]


def page(parts: Iterable[Sequence[str]]) -> bytes:
    """All metrics as the page that Prometheus reads."""
    return ("\n".join(line for part in parts for line in part) + "\n").encode()


def _labels(labels: Labels) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{shown}}}" if shown else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
