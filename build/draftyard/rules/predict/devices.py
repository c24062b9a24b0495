"""Constants of the devices that engines are made for: bytes the driver reports, and dense peaks."""

from draftyard.nouns.gpu import FACTS, Gpu
from draftyard.nouns.prediction import Device

# Dense BF16 and FP8 TFLOPS and the one-way link rate, from the vendor's data sheets. Printed figures are often the
# sparse ones, twice these: 1,979 TFLOPS for BF16 on an H100 is sparse, 989 is dense.
_PEAKS: dict[Gpu, tuple[float, float, float, bool]] = {
    Gpu.H100_SXM: (989e12, 1979e12, 450e9, False),
    Gpu.H100_PCIE: (756e12, 1513e12, 300e9, True),
    Gpu.H100_NVL: (835e12, 1671e12, 300e9, True),
    Gpu.H200_SXM: (989e12, 1979e12, 450e9, False),
}


def device_of(gpu: Gpu) -> Device:
    """The constants of a GPU; KeyError for the CPU, whose constants are measured."""
    facts, (peak_16bit, peak_8bit, link_rate, pair) = FACTS[gpu], _PEAKS[gpu]
    return Device(
        name=gpu.value,
        usable_bytes=float(facts.usable_bytes),
        bandwidth_bytes_per_s=facts.bandwidth_bytes_per_s,
        peak_16bit=peak_16bit,
        peak_8bit=peak_8bit,
        link_bytes_per_s=link_rate,
        pair_link=pair,
    )


def ridge(device: Device, eight_bit: bool) -> float:
    """FLOPs per byte at which reading and computing take equally long, from dense peaks."""
    return (device.peak_8bit if eight_bit else device.peak_16bit) / device.bandwidth_bytes_per_s
