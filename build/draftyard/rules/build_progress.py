"""How far a builder is, read from the lines it prints."""

import re
from dataclasses import dataclass, replace

# The lines of trtllm-build 1.2; other releases print like ones, and an unknown line changes nothing.
_LOADING = re.compile(r"(?:Loading|Reading|Load) .*(?:weights|checkpoint)", re.IGNORECASE)
_NETWORK = re.compile(r"Build TensorRT engine|Optimizing|Building? engine", re.IGNORECASE)
_LAYER = re.compile(r"transformer/layers/(\d+)/")
_RANK_DONE = re.compile(r"Engine serialized|Serializ\w+ .*rank\d+\.engine", re.IGNORECASE)
_ALL_DONE = re.compile(r"Total time of building all engines: *(\S+)")
_PEAK = re.compile(r"Build phase peak memory: *([\d.]+) *MB(?:, *children: *([\d.]+) *MB)?")
_SHARES = {"starting": 0.0, "loading weights": 0.05, "building": 0.25, "serialising": 0.95}


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Where a build of `ranks` ranks is; `peak_memory_bytes` as the builder itself says, None before it does."""

    ranks: int
    ranks_done: int = 0
    phase: str = "starting"
    layer: int | None = None
    total_time: str = ""
    peak_memory_bytes: int | None = None

    @property
    def share(self) -> float:
        """Done, in 0..1: whole ranks, and how far the present one is."""
        if self.total_time:
            return 1.0
        return min((self.ranks_done + _SHARES.get(self.phase, 0.25)) / self.ranks, 0.99)

    @property
    def words(self) -> str:
        """Rank, phase and layer, for people."""
        rank = f"rank {min(self.ranks_done, self.ranks - 1)} of {self.ranks}"
        return f"{rank}, {self.phase}" + (f", layer {self.layer}" if self.layer is not None else "")


def advance(progress: BuildProgress, line: str) -> BuildProgress:
    """The progress after one more line of the log."""
    peak = _PEAK.search(line)
    if peak:
        total = sum(float(part) for part in peak.groups() if part)
        return replace(progress, peak_memory_bytes=int(total * (1 << 20)))
    finished = _ALL_DONE.search(line)
    if finished:
        return replace(progress, total_time=finished.group(1), ranks_done=progress.ranks, phase="done", layer=None)
    if _RANK_DONE.search(line):
        done = min(progress.ranks_done + 1, progress.ranks)
        return replace(
            progress, ranks_done=done, phase="starting" if done < progress.ranks else "serialising", layer=None
        )
    layer = _LAYER.search(line)
    if layer:
        return replace(progress, phase="building", layer=int(layer.group(1)))
    if _NETWORK.search(line):
        return replace(progress, phase="building")
    if _LOADING.search(line):
        return replace(progress, phase="loading weights")
    return progress
