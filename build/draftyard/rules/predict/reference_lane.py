"""Coefficients of the reference lane on a CPU, from what was measured of it."""

import math

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.host_speed import KernelRates
from draftyard.nouns.network import Precision
from draftyard.nouns.prediction import Device, StepCoefficients
from draftyard.rules.predict.coefficients import STEP_FIELDS, Bounds, LaneCoefficients
from draftyard.rules.predict.memory_parts import MemoryCoefficients
from draftyard.rules.predict.speculation import SpeculationCoefficients

_UNSURE = math.log(1.5)  # measured kernels, but no server around them and another load of the machine
_CHUNK_SHARE = 0.5  # a new request waits for half of the others' prompts: they are served in turn
# What the server adds around the engine, guessed until a calibration: queues, the entry, one response a step.
_SERVER_STEP_US = 500.0
_SERVER_SEQUENCE_US = 200.0
_PROCESS_GB = 0.45  # Python and torch in one process
# Attention over a cached token costs about four times what reading it does: small products on one thread.
_ATTENTION = 4.0


def cpu_device(rates: KernelRates) -> Device:
    """The processor as a device; its memory is the host's and is not checked here."""
    return Device(Gpu.CPU.value, 0.0, rates.read_bytes_per_s, rates.flops, rates.flops, 1.0)


def reference_coefficients(rates: KernelRates, precision: Precision, measured_at: str) -> LaneCoefficients:
    """Rates are the device's, so multipliers are 1; exposed times as measured, intervals wide until calibrated."""
    step = StepCoefficients(
        weights=1.0,
        compute=1.0,
        compute_8bit=1.0,
        expert=1.0,
        cache=1.0,
        attention=_ATTENTION,
        activation=1.0,
        reduce=1.0,
        reduce_us=0.0,
        hop_us=0.0,
        slow_reduce_us=0.0,
        slow_hop_us=0.0,
        layer_us=rates.layer_us,
        expert_layer_us=rates.layer_us,
        step_us=rates.step_us + _SERVER_STEP_US,
        sequence_us=rates.sequence_us + _SERVER_SEQUENCE_US,
        sharpness=rates.sharpness,
    )
    wide = (-_UNSURE, _UNSURE)
    return LaneCoefficients(
        source=f"rates of this machine, {precision}, measured {measured_at}",
        step=step,
        errors=tuple(0.3 for _ in STEP_FIELDS),
        prefill=1.0,
        queue=_CHUNK_SHARE,
        first_token=step,
        memory=MemoryCoefficients(1.0, 1.0, 4.0, 1.0, (_PROCESS_GB,) * 4),
        speculation=SpeculationCoefficients(
            overhead_share=0.02,
            overhead_us=300.0,
            sequence_us=100.0,
            pass_us=100.0,
            layer=1.0,
            draft=1.0,
            arithmetic=1.0,
            sharpness=rates.sharpness,
            expert_widening=1.0,
        ),
        bounds=Bounds(token=wide, token_mixture=wide, first_token=wide, memory=(-0.2, 0.2), speedup=(-0.3, 0.3)),
    )
