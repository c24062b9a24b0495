"""What a lane cannot execute of a network: head sizes, long contexts; told before any weight is read."""

from draftyard.nouns.errors import Problem
from draftyard.nouns.lane import Lane
from draftyard.nouns.network import Network
from draftyard.nouns.recipe import Limits

# MMHA_SUPPORTED_HEAD_SIZES of TensorRT-LLM (cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention.cu): what its
# attention plugin generates tokens with.
ATTENTION_HEAD_SIZES = (32, 48, 64, 80, 96, 104, 112, 128, 144, 160, 192, 224, 256)


def lane_problems(network: Network, role: str, lanes: tuple[Lane, ...], limits: Limits) -> list[Problem]:
    """Why lanes of a recipe cannot execute this network at these sizes; empty when they can."""
    problems = []
    if Lane.TENSORRT in lanes:
        problems.extend(_tensorrt(network, role))
    if Lane.REFERENCE in lanes:
        problems.extend(_reference(network, role, limits))
    return problems


def rotary_limit(network: Network) -> int | None:
    """Tokens up to which the angles of a token are fixed; None without a bound. Beyond, they depend on what follows."""
    scaling = network.rotary_scaling
    if scaling is None or scaling.kind not in ("dynamic", "longrope"):
        return None
    original = dict(scaling.values).get("original_max_position_embeddings")
    if scaling.kind == "longrope" and isinstance(original, int):
        return original
    return network.max_position_embeddings


def _tensorrt(network: Network, role: str) -> list[Problem]:
    problems = []
    if network.head_size not in ATTENTION_HEAD_SIZES:
        sizes = ", ".join(str(size) for size in ATTENTION_HEAD_SIZES)
        problems.append(
            Problem(
                f"the {role}'s head size {network.head_size} is none that the tensorrt lane has attention kernels for: "
                f"{sizes}",
                "use the reference lane, or choose another model",
            )
        )
    if network.rotary_scaling is not None and network.rotary_scaling.kind == "longrope":
        problems.append(
            Problem(
                f"the {role} has the rotary scaling longrope, which TensorRT-LLM does not read for Llama-like models",
                "use the reference lane, or choose another model",
            )
        )
    return problems


def _reference(network: Network, role: str, limits: Limits) -> list[Problem]:
    window, longest = network.sliding_window, rotary_limit(network)
    problems = []
    if window is not None and window < limits.max_seq_len:
        problems.append(
            Problem(
                f"attention of the {role} sees {window} tokens, and the reference lane has no sliding window",
                f"lower limits.max_seq_len to {window} or less",
            )
        )
    if longest is not None and longest < limits.max_seq_len:
        problems.append(
            Problem(
                f"the {role}'s rotary scaling is executed up to {longest} tokens by the reference lane",
                f"lower limits.max_seq_len to {longest} or less",
            )
        )
    return problems
