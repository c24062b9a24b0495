"""What the machine gives at best, so that speeds can be read as a share of it."""

import platform
import time
import warnings
from collections.abc import Callable

import torch

MEBIBYTE = 2**20


def seconds_of(work: Callable[[], object], rounds: int = 7) -> float:
    """The least time of several rounds."""
    work()
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def machine_limits(threads: int) -> dict[str, float | int | str]:
    """Bandwidth of a sum over 256 MiB (GB/s), and GFLOP/s of large float32 and float16-stored products."""
    torch.set_num_threads(threads)
    long = torch.ones(64 * MEBIBYTE)
    left, right = torch.randn(512, 1024), torch.randn(1024, 1024)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(right)
        flops = 2 * left.shape[0] * right.numel() / 1e9
        return {
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "vector_width": torch.backends.cpu.get_cpu_capability(),
            "read_gb_per_s": round(long.numel() * 4 / seconds_of(long.sum) / 1e9, 1),
            "float32_gflops": round(flops / seconds_of(lambda: left @ right), 1),
            "float16_stored_gflops": round(
                flops / seconds_of(lambda: torch.fbgemm_linear_fp16_weight_fp32_activation(left, packed, None)), 1
            ),
        }
