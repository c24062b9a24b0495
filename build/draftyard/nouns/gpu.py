"""The devices an engine can be made for."""

from dataclasses import dataclass

from draftyard.nouns.enums import StrEnum


class Gpu(StrEnum):
    """A product: H100 and H200 engines are built apart, also between their boards."""

    H100_SXM = "h100_sxm"
    H100_PCIE = "h100_pcie"
    H100_NVL = "h100_nvl"
    H200_SXM = "h200_sxm"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Capability and memory of one device; `usable_bytes` is what the driver reports, not the nominal size."""

    compute_capability: str
    usable_bytes: int
    bandwidth_bytes_per_s: float


# Nominal bandwidth from the vendor's data sheets; usable memory as reported by the driver's own tool.
FACTS: dict[Gpu, GpuFacts] = {
    Gpu.H100_SXM: GpuFacts("9.0", 85_520_809_984, 3.35e12),
    Gpu.H100_PCIE: GpuFacts("9.0", 85_520_809_984, 2.0e12),
    Gpu.H100_NVL: GpuFacts("9.0", 100_485_038_080, 3.9e12),
    Gpu.H200_SXM: GpuFacts("9.0", 150_754_820_096, 4.8e12),
}
