"""Reads published measurements: one row becomes a configuration and a value, or the reason why it cannot be used."""

import csv
import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.predict.published_models import published_shape
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.prediction import Device, ModelShape, Placement, Storage
from draftyard.rules.predict.devices import device_of

# Devices of published rows that no engine of this project is made for: (usable bytes, bandwidth, dense 16 bit,
# dense 8 bit, link one way). A100 has no FP8: its 8-bit peak is that of 16 bit.
_OTHERS: dict[str, tuple[float, float, float, float, float]] = {
    "A100": (85e9, 2.039e12, 312e12, 312e12, 300e9),
    "H20": (102e9, 4.0e12, 148e12, 296e12, 450e9),
    "B200": (191e9, 8.0e12, 2250e12, 4500e12, 900e9),
    "B300": (288e9, 8.0e12, 2250e12, 4500e12, 900e9),
    "GB200": (191e9, 8.0e12, 2450e12, 4900e12, 900e9),
    "RTX 3090": (25.4e9, 0.936e12, 71e12, 71e12, 32e9),
    "MI300X": (206e9, 5.3e12, 1307e12, 2614e12, 448e9),
    "TPU v4": (34e9, 1.2e12, 275e12, 275e12, 100e9),
}
_OURS = {"H100 SXM": Gpu.H100_SXM, "H100 PCIe": Gpu.H100_PCIE, "H100 NVL": Gpu.H100_NVL, "H200 SXM": Gpu.H200_SXM}
_WEIGHT_BYTES = {"FP8": 1.0, "FP16": 2.0, "BF16": 2.0, "FP32": 4.0, "INT8": 1.0, "INT4": 0.53, "INT4_WO": 0.53}
_FOUR_BIT = {"NVFP4": 0.56, "MXFP4": 0.53, "FP4": 0.56}


@dataclass(frozen=True)
class Row:
    """One published measurement with its text columns, as read; missing columns are empty."""

    columns: dict[str, str]

    def text(self, name: str) -> str:
        """A column's text, "" when it is missing."""
        return (self.columns.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """A column's number, None when it is missing, no number, or not above 0 (every column here counts or measures
        something)."""
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if 0.0 < value < math.inf else None

    @property
    def id(self) -> str:
        """What names the row in messages."""
        return self.text("id") or self.text("section") or "?"

    @property
    def suspect(self) -> bool:
        """The collection itself calls the row an error of its source, or recalled."""
        return "suspect" in self.text("notes") or self.text("verified") == "recalled"

    def note(self, name: str) -> float | None:
        """A `name=number` of the notes."""
        found = re.search(rf"\b{name}=(\d+(?:\.\d+)?)", self.text("notes"))
        return float(found.group(1)) if found else None

    @property
    def configuration(self) -> str:
        """Everything that identifies a run; all its metrics share it."""
        names = (
            *("model", "precision", "gpu", "gpu_count", "tp", "engine", "engine_version", "batch_or_concurrency"),
            *("qps", "isl", "osl", "method", "draft", "k_or_tree", "num_draft_tokens", "dataset", "source"),
        )
        return "|".join(self.text(name) for name in names)

    @property
    def half(self) -> int:
        """0 or 1 by a hash of the configuration, for files that name no split."""
        return hashlib.sha256(self.configuration.encode()).digest()[0] & 1


def read_rows(path: Path) -> tuple[Row, ...]:
    """All rows of a CSV file with a header; columns that are not there read as empty."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(Row({key: value for key, value in row.items() if key}) for row in csv.DictReader(file))


def device_named(name: str) -> Device | None:
    """The device a row was measured on; a qualifier behind the name is ignored. None when it is not known."""
    for known, gpu in _OURS.items():
        if name.startswith(known):
            return device_of(gpu)
    for known in sorted(_OTHERS, key=len, reverse=True):
        if name.startswith(known):
            usable, bandwidth, peak_16, peak_8, link = _OTHERS[known]
            return Device(known, usable, bandwidth, peak_16, peak_8, link)
    if name.startswith("H100"):
        return device_of(Gpu.H100_SXM)
    return device_of(Gpu.H200_SXM) if name.startswith("H200") else None


def storage_named(precision: str, cache: str) -> Storage | None:
    """Bytes of weights and cache. The cache follows what the row says; unsaid, FP8 engines are taken to cache in FP8
    only where the row says so, all others in 16 bit."""
    name = precision.upper()
    weight = _WEIGHT_BYTES.get(name) or _FOUR_BIT.get(name)
    if weight is None:
        return None
    cached = {"FP8": 1.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0}.get(cache.upper(), 2.0)
    eight = name in ("FP8", "INT8") or name in _FOUR_BIT
    return Storage(weight, 2.0, cached, 2.0, eight)


def placement(row: Row) -> Placement | str:
    """The model on its devices, or why it is not known."""
    shape = shape_of(row)
    if shape is None:
        return f"no sizes for model {row.text('model') or '(none)'}"
    device = device_named(row.text("gpu"))
    if device is None:
        return f"no constants for GPU {row.text('gpu') or '(none)'}"
    storage = storage_named(row.text("precision"), row.text("kv_precision"))
    if storage is None:
        return f"precision {row.text('precision') or '(none)'} is not known"
    tp = row.number("tp") or row.number("gpu_count") or row.note("tp") or 1
    return Placement(shape, device, storage, max(int(tp), 1))


def shape_of(row: Row) -> ModelShape | None:
    """Sizes of the row's model."""
    return published_shape(row.text("model"), row.number("params_b"), row.number("active_b"))
