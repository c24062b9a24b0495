"""Asks aiconfigurator, where it is installed, what it makes of a variant; it is never needed."""

from importlib.util import find_spec
from pathlib import Path

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.prediction import OtherEstimate

# Its names for the devices it has tables of.
_SYSTEMS = {Gpu.H100_SXM: "h100_sxm", Gpu.H200_SXM: "h200_sxm"}


def other_estimator_installed() -> bool:
    """Whether aiconfigurator can be imported; looking does not load it."""
    return find_spec("aiconfigurator") is not None


def other_estimate(
    model: Path, gpu: Gpu, tp: int, lengths: tuple[int, int], concurrency: int, eight_bit: bool
) -> OtherEstimate | str:
    """First token and time per token of plain decoding after aiconfigurator (0.12: `cli.api.cli_estimate`), or why it
    has none. `lengths` are tokens of the prompt and the answer."""
    if gpu not in _SYSTEMS:
        return f"aiconfigurator has no tables for {gpu}"
    # It loads tables and plotting libraries: seconds that only those pay who have installed it.
    from aiconfigurator.cli.api import cli_estimate

    try:
        found = cli_estimate(
            str(model),
            _SYSTEMS[gpu],
            backend_name="trtllm",
            isl=lengths[0],
            osl=lengths[1],
            batch_size=concurrency,
            tp_size=tp,
            gemm_quant_mode="fp8_static" if eight_bit else None,
        )
        return OtherEstimate("aiconfigurator", concurrency, float(found.ttft), float(found.tpot))
    # Another project's code on tables that may lack the case: whatever it raises, our own forecast stands.
    except Exception as error:
        return f"aiconfigurator gives no estimate: {error}"
