"""Reads how full a server's KV cache is, from TensorRT-LLM's metrics in Triton's Prometheus text."""

import re
import urllib.error
import urllib.request

# Source: tensorrtllm_backend, docs on custom metrics of the inflight batcher (1.2).
KV_BLOCKS = re.compile(
    r'^nv_trt_llm_kv_cache_block_metrics\{[^}]*kv_cache_block_type="(used|max)"[^}]*\} ([0-9.eE+-]+)$', re.MULTILINE
)


def kv_cache_share(metrics_url: str, timeout_s: float = 2.0) -> float | None:
    """Used over all blocks, 0..1, of the server whose metrics are at host:port; None when it does not tell."""
    try:
        with urllib.request.urlopen(f"http://{metrics_url}/metrics", timeout=timeout_s) as answer:
            text = answer.read().decode("utf-8")
    except (urllib.error.URLError, OSError):
        return None
    return share_of_blocks(text)


def share_of_blocks(text: str) -> float | None:
    """The same from the text of the metrics; blocks of several models are added up."""
    totals = {"used": 0.0, "max": 0.0}
    for kind, value in KV_BLOCKS.findall(text):
        totals[kind] += float(value)
    return totals["used"] / totals["max"] if totals["max"] else None
