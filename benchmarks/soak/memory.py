"""How much memory a server and the processes of its models hold."""

from collections.abc import Sequence
from pathlib import Path

PAGE = 4096


def processes_of(pid: int) -> tuple[int, ...]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(text.rsplit(")", 1)[1].split()[1])
    found = [pid]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return tuple(found)


def resident_bytes(pids: Sequence[int]) -> int:
    """Memory that the processes have for themselves: resident less shared."""
    total = 0
    for pid in pids:
        try:
            _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
        except OSError:
            continue
        total += (int(resident) - int(shared)) * PAGE
    return total


def slope_per_minute(samples: Sequence[tuple[float, int]]) -> float:
    """Bytes a minute by which memory grew over the later half of (seconds, bytes): least squares."""
    later = samples[len(samples) // 2 :]
    if len(later) < 2:
        return 0.0
    mean_s = sum(at for at, _ in later) / len(later)
    mean_bytes = sum(size for _, size in later) / len(later)
    spread = sum((at - mean_s) ** 2 for at, _ in later)
    return 60.0 * sum((at - mean_s) * (size - mean_bytes) for at, size in later) / spread if spread else 0.0
