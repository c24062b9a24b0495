"""From a few measured steps to the constants of a CPU: exposed time first, then reading, arithmetic, and their sum."""

import math
from dataclasses import dataclass

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.host_speed import KernelRates
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import Device, Placement, Routing
from draftyard.rules.predict.shapes import shape_of_network, storage_of
from draftyard.rules.predict.step_terms import step_flops, step_weight_bytes

_LEAST_MS = 1e-3


@dataclass(frozen=True, slots=True)
class Probe:
    """Milliseconds of steps: of a large network for one sequence, for `batch` and for a prompt; of small ones, whose
    arithmetic is nothing, for one sequence and a batch, and with few layers."""

    network: Network
    precision: Precision
    one_ms: float
    batch_ms: float
    prompt_ms: float
    batch: int
    prompt: int
    small_ms: float
    small_batch_ms: float
    small_layers: int
    shallow_ms: float
    shallow_layers: int


def rates_of(probe: Probe) -> KernelRates:
    """The constants that explain the probe; each at least a thousandth of a millisecond's worth."""
    layer_ms = max((probe.small_ms - probe.shallow_ms) / (probe.small_layers - probe.shallow_layers), _LEAST_MS)
    step_ms = max(probe.small_ms - layer_ms * probe.small_layers, _LEAST_MS)
    sequence_ms = max((probe.small_batch_ms - probe.small_ms) / (probe.batch - 1), 0.0)
    exposed = layer_ms * probe.network.layers + step_ms
    place = cpu_placement(probe.network, probe.precision)
    reading = max(probe.one_ms - exposed, _LEAST_MS)
    read_rate = step_weight_bytes(place, 1.0, Routing.SPREAD) / (reading / 1e3)
    computing = max(probe.prompt_ms - exposed, _LEAST_MS)
    flops = sum(step_flops(place, probe.prompt, 1.0)) / (computing / 1e3)
    batch_compute = 1e3 * sum(step_flops(place, probe.batch, probe.batch)) / flops
    batch_ms = max(probe.batch_ms - exposed - sequence_ms * (probe.batch - 1), _LEAST_MS)
    return KernelRates(
        read_bytes_per_s=read_rate,
        flops=flops,
        layer_us=1e3 * layer_ms,
        step_us=1e3 * step_ms,
        sequence_us=1e3 * sequence_ms,
        sharpness=sharpness_of(reading, batch_compute, batch_ms),
    )


def sharpness_of(reading: float, computing: float, together: float) -> float:
    """The p in [1, 8] with (reading^p + computing^p)^(1/p) = together; at an end where no p fits."""
    low, high = 1.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        if math.exp(math.log(reading**middle + computing**middle) / middle) > together:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def cpu_placement(network: Network, precision: Precision, rates: KernelRates | None = None) -> Placement:
    """A network on this machine; without rates the device has none and only sizes may be asked of it."""
    read, flops = (rates.read_bytes_per_s, rates.flops) if rates else (1.0, 1.0)
    device = Device("cpu", 0.0, read, flops, flops, 1.0)
    return Placement(shape_of_network(network), device, storage_of(precision, Gpu.CPU, False), 1)
