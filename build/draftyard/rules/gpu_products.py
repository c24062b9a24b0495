"""Which product a GPU is by the name its driver gives."""

from draftyard.nouns.gpu import Gpu

# Names as nvidia-smi prints them; boards of one chip differ in processors, clocks and memory.
_NAMES = {
    "NVIDIA H100 80GB HBM3": Gpu.H100_SXM,
    "NVIDIA H100 PCIe": Gpu.H100_PCIE,
    "NVIDIA H100 NVL": Gpu.H100_NVL,
    "NVIDIA H200": Gpu.H200_SXM,
}


def product_of(name: str) -> Gpu | None:
    """The product of a device name, None for any other device."""
    return _NAMES.get(name.strip())
